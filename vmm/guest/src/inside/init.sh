#!/nicforge/busybox sh
# The first process of a guest: mounts the usual file systems, loads modules, starts the agent. All
# files of nicforge are in /nicforge, so that they can be added to another initramfs.
B=/nicforge/busybox
$B mkdir -p /proc /sys /dev /tmp /run /root /bin /sbin /usr/bin /usr/sbin /nicforge/bin /nicforge/run
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
$B mount -t tmpfs tmp /tmp
$B mkdir -p /dev/pts /dev/shm
$B mount -t devpts pts /dev/pts
$B mount -t tmpfs shm /dev/shm
[ -e /bin/sh ] || $B --install -s
$B --install -s /nicforge/bin
export PATH=/nicforge/tools:/root:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/nicforge/bin HOME=/root
exec </dev/null
. /nicforge/config
# The values of parameters are not patterns of file names.
set -f
while read -r module parameters; do
	modprobe "$module" $parameters </dev/null 2>/nicforge/run/modprobe ||
		echo "module $module: not loaded ($(cat /nicforge/run/modprobe))" >>/nicforge/run/problems
done </nicforge/modules
set +f
if [ -n "$NF_SHARE" ]; then
	mkdir -p /share
	case $NF_SHARE in
	9p) mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share ;;
	# The PCI address of a disk with the image of a file system.
	*) mount -t erofs -o ro "/dev/$(cd /sys/bus/pci/devices/$NF_SHARE/virtio*/block && echo *)" /share ;;
	esac 2>/nicforge/run/mount ||
		echo "/share: not mounted ($(cat /nicforge/run/mount))" >>/nicforge/run/problems
fi
ip link set lo up 2>/dev/null
sh /nicforge/agent
poweroff -f
