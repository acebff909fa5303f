# Runs the host's commands. The channel is a serial line in raw mode.
#
# Host to guest, one line for each request:
#   ID run SCRIPT   SCRIPT is base64; it runs in a session and a process group of its own
#   ID kill         ends all processes of that group
#   CALL answer STATUS TEXT
#                   ends the call of a barrier
#   ID quit         powers off
# Guest to host, one line for each message:
#   0 n TEXT        a problem during the start
#   0 ready         the agent accepts jobs
#   ID s            the job has begun
#   0 b CALL NAME SECONDS
#                   nicforge-barrier, in the process CALL, waits for the other guests at NAME
#   ID o TEXT       a line of standard output (e: of standard error); o+ and e+: a part of a
#                   line, of which more follows
#   ID x STATUS     the job has ended
run=/nicforge/run
line=/dev/ttyS1
stty -F $line 115200 raw -echo -hupcl
exec 3<>$line
. /nicforge/config

# Functions come with their place: SLOT.FUNCTION on the root bus, or PORT/ for the function behind
# a root port.
place() {
	case $1 in
	*/)
		for path in "/sys/bus/pci/devices/0000:00:${1%/}"/0000:*; do
			[ -e "$path/vendor" ] && basename "$path" && return
		done
		return 1
		;;
	*) [ -e "/sys/bus/pci/devices/0000:00:$1" ] && echo "0000:00:$1" ;;
	esac
}

bind() { # ADDRESS: prints how a program opens the function
	case $NF_DRIVER in
	vfio)
		echo vfio-pci >"/sys/bus/pci/devices/$1/driver_override"
		echo "$1" >/sys/bus/pci/drivers_probe
		[ -e "/sys/bus/pci/drivers/vfio-pci/$1" ] && echo "vfio:$1"
		;;
	shim)
		for path in "/sys/bus/pci/devices/$1"/*/nicforge[0-9]*; do
			[ -e "$path" ] && echo "shim:/dev/$(basename "$path")" && return
		done
		return 1
		;;
	esac
}

# Whether another driver than nicforge's has the function: one that was loaded by name or by
# modalias.
taken() { # ADDRESS
	[ -e "/sys/bus/pci/devices/$1/driver" ] || return
	case $(readlink "/sys/bus/pci/devices/$1/driver") in
	*/nicforge-shim) return 1 ;;
	esac
}

problem() { echo "0 n $*" >&3; }

case $NF_DRIVER in
vfio) modprobe vfio_iommu_type1 && modprobe vfio-pci || problem "vfio: not loaded" ;;
shim) insmod /nicforge/shim.ko 2>$run/insmod || problem "shim: $(cat $run/insmod)" ;;
esac
devices= sockets=
for function in $NF_FUNCTIONS; do
	name=${function%%=*}
	if ! address=$(place "${function#*=}"); then
		problem "$name: there is no PCI function at ${function#*=}"
		continue
	fi
	devices=$devices${devices:+,}$name=$address
	case $NF_DRIVER$NF_USERS in
	none*) continue ;;
	*" $name "*) ;;
	*) continue ;;
	esac
	[ $NF_DRIVER = shim ] && taken "$address" && continue
	if socket=$(bind "$address" 2>$run/bind); then
		sockets=$sockets${sockets:+:}$socket
	else
		problem "$name ($address): not bound by $NF_DRIVER $(cat $run/bind)"
	fi
done
export NICFORGE_DEVICES=$devices NICFORGE_SOCKET=$sockets
. /nicforge/environment
if [ -s $run/problems ]; then
	while read -r text; do problem "$text"; done <$run/problems
fi

end() { # ID: kills the job; waits for one that is just starting
	while [ -e $run/$1.job ]; do
		if [ -e $run/$1.pid ] && kill -KILL -"$(cat $run/$1.pid)" 2>/dev/null; then
			return
		fi
		usleep 20000
	done
}

echo "0 ready" >&3
while read -r id verb rest <&3; do
	case $verb in
	# The reading shell has no children: its `read` would lose the beginning of a line when a child
	# ended. A process that a shell starts with `&` also ignores Ctrl-C, and so do its children.
	run)
		echo "$rest" >$run/$id.job
		start-stop-daemon -S -b -p $run/none -a /nicforge/busybox -- sh /nicforge/job "$id"
		echo "$id s" >&3
		;;
	kill) (end "$id" &) ;;
	answer) echo "$rest" >$run/barrier.$id ;;
	quit) exit ;;
	esac
done
