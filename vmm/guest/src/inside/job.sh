# Runs the job with the given number, frames its output for the channel, and reports its status.
run=/nicforge/run
f=$run/$1
exec 3>/dev/ttyS1
# A line that no program writes by chance: output behind it is not the job's.
end=end-$(cat /proc/sys/kernel/random/uuid)

frame() { # PREFIX FILE: frames its input until its end or the end line; then creates FILE
	awk -v p="$1" -v done="$2" -v end="$end" '
	function show(text) {
		while (length(text) > 1000) { print p "+ " substr(text, 1, 1000); text = substr(text, 1001) }
		print p " " text
		fflush()
	}
	function finish() { printf "" >done; close(done); over = 1 }
	over { next } # a process that still writes must not get SIGPIPE
	{
		at = length($0) - length(end) + 1
		if (at < 1 || substr($0, at) != end) { show($0); next }
		# The rest of a line without its end.
		if (at > 1) show(substr($0, 1, at - 1))
		finish()
	}
	END { if (!over) finish() }' >&3 3>&-
}

base64 -d <$f.job >$f.sh
mkfifo $f.o $f.e
frame "$1 o" $f.o.done <$f.o &
framers=$!
frame "$1 e" $f.e.done <$f.e &
framers="$framers $!"
# The file has its final name only when the process id in it is complete.
setsid sh -c 'echo $$ >$0.new && mv $0.new $0.pid && exec sh $0.sh' $f >$f.o 2>$f.e </dev/null 3>&-
status=$?

framing() { # whether a framer still runs
	[ -e $f.o.done ] && [ -e $f.e.done ] && return 1
	# A framer that was killed never creates its file.
	for framer in $framers; do
		kill -0 $framer 2>/dev/null && return 0
	done
	return 1
}

# Background processes of the job may hold its outputs open, so the wait is short.
for _ in 1 2 3 4 5 6 7 8 9 10; do
	framing || break
	usleep 50000
done
# The program's output is in the pipes before this line, and reaches the host as fast as the host
# reads. A pipe that is opened for reading and writing does not wait for a reader.
if framing; then
	for stream in o e; do
		echo "$end" 1<>$f.$stream 3>&- &
	done
fi
while framing; do
	usleep 50000
done
rm -f $f.*
echo "$1 x $status" >&3
