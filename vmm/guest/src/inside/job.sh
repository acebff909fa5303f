# Runs the job of a number, frames its output for the channel, and says how it ended.
run=/nicforge/run
f=$run/$1
exec 3>/dev/ttyS1

frame() { # PREFIX: its input, line by line
	awk -v p="$1" '{
		while (length($0) > 1000) { print p "+ " substr($0, 1, 1000); $0 = substr($0, 1001) }
		print p " " $0
		fflush()
	}' >&3 3>&-
}

base64 -d <$f.job >$f.sh
mkfifo $f.o $f.e
frame "$1 o" <$f.o &
framers=$!
frame "$1 e" <$f.e &
framers="$framers $!"
# Its number is under its name when it is complete.
setsid sh -c 'echo $$ >$0.new && mv $0.new $0.pid && exec sh $0.sh' $f >$f.o 2>$f.e </dev/null 3>&-
status=$?
# What it left in the background may hold its outputs open; that is no reason to wait for long.
for _ in 1 2 3 4 5 6 7 8 9 10; do
	kill -0 $framers 2>/dev/null || break
	usleep 50000
done
rm -f $f.*
echo "$1 x $status" >&3
