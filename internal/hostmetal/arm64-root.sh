#!/bin/sh
# arm64-root.sh ROOT: unpacks Debian's arm64 libraries that libhostmetal.so needs into ROOT.
# apt keeps its lists and packages under ROOT too; the system's own state is not touched.
set -e
root=$1
test -n "$root"
test -e "$root/done" && exit 0
mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial"
: >"$root/apt/status"
apt() {
	apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1 \
		-o Dir::State="$root/apt" -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt/cache" "$@"
}
apt update
apt -y -d --no-install-recommends install libgnustep-base1.28 libobjc-12-dev libstdc++-12-dev libc6-dev \
	libblocksruntime-dev libffi-dev # for darwinkit
for deb in "$root"/apt/cache/archives/*.deb; do
	dpkg -x "$deb" "$root"
done
rm -rf "$root/apt"
# lib and usr/lib are one tree, and absolute links point outside of ROOT.
for link in $(find "$root" -type l -lname '/*'); do
	ln -sfn "$root$(readlink "$link")" "$link"
done
: >"$root/done"
