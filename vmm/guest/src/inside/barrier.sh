#!/nicforge/busybox sh
# nicforge-barrier NAME [SECONDS]: waits until the commands of all guests have come to the barrier.
# It ends with
#   0    all have come
#   1    not all can come, because the command of a guest has ended
#   2    the arguments are wrong
#   3    the host does not answer, or refuses the call
#   124  the time is over: 300 seconds, unless SECONDS names others
run=/nicforge/run
name=$1 seconds=${2:-300}

fail() { # STATUS TEXT
	echo "nicforge-barrier: $2" >&2
	exit "$1"
}

usage="use: nicforge-barrier NAME [SECONDS], with a name of at most 64 letters, digits, '.', '_' and '-', and 1 to 86400 seconds"
[ $# -le 2 ] && [ ${#name} -le 64 ] && [ ${#seconds} -le 5 ] || fail 2 "$usage"
case $name in '' | *[!A-Za-z0-9._-]*) fail 2 "$usage" ;; esac
case $seconds in '' | *[!0-9]*) fail 2 "$usage" ;; esac
[ "$seconds" -ge 1 ] && [ "$seconds" -le 86400 ] || fail 2 "$usage"

answer=$run/barrier.$$
rm -f $answer
echo "0 b $$ $name $seconds" >/dev/ttyS1

# The host answers within the time. A host that does not has 30 seconds more.
left=$(((seconds + 30) * 20))
while [ ! -s $answer ]; do
	[ $left -gt 0 ] || fail 3 "$name: the host does not answer"
	left=$((left - 1))
	usleep 50000
done

read -r status text <$answer
rm -f $answer
[ "$status" = 0 ] || fail "$status" "$name: $text"
