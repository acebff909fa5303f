# Runs the host's commands. The channel is a serial line in raw mode.
#
# Host to guest, a line each:
#   ID run SCRIPT   SCRIPT is base64; it runs in a session and a process group of its own
#   ID kill         ends all processes of that group
#   ID quit         powers off
# Guest to host, a line each:
#   0 n TEXT        a problem while starting
#   0 ready         everything is there
#   ID o TEXT       a line of standard output (e: of standard error); o+ and e+: a part, more of the line follows
#   ID x STATUS     it has ended
run=/nicforge/run
line=/dev/ttyS1
stty -F $line 115200 raw -echo -hupcl
exec 3<>$line
. /nicforge/config

# Functions are named with their place: SLOT.FUNCTION on the root bus, or PORT/ for what is behind a root port.
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

bind() { # ADDRESS: prints how a program opens it
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

end() { # ID: a job that is just starting gets the time for that
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
	# The shell that reads has no children: its `read` would lose the beginning of a line when one ended. And what a shell starts
	# with `&` ignores Ctrl-C for ever, with all that it starts.
	run)
		echo "$rest" >$run/$id.job
		start-stop-daemon -S -b -p $run/none -a /nicforge/busybox -- sh /nicforge/job "$id"
		;;
	kill) (end "$id" &) ;;
	quit) exit ;;
	esac
done
