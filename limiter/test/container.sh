#!/bin/sh
# The library as a container has it: named in /etc/ld.so.preload, the region mounted at /run/tessera/region, a tenant that
# does what it likes with its environment. A mount namespace stands in for the container, with a copy of /etc and an
# empty /run. The device has 1024 MiB, the share 256; a forged region would give 900.
# Usage: container.sh LIBRARY SIM_DIR MAKE_REGION.
set -eu

uuid=GPU-5e1a0000-0000-4000-8000-000000000000
failures=0

if [ "${1:-}" != --inside ]; then
    if unshare -m true 2>/dev/null && [ "$(id -u)" = 0 ]; then
        namespace=-m
    elif unshare -rm true 2>/dev/null; then
        namespace=-rm
    else
        echo "container.sh: skipped, this user may not make a mount namespace"
        exit 0
    fi
    dir=$(mktemp -d "${TMPDIR:-/tmp}/tessera-container.XXXXXX")
    trap 'rm -rf "$dir"' EXIT
    chmod 755 "$dir"
    unshare $namespace sh "$0" --inside "$dir" "$@"
    exit
fi

dir=$2 make_region=$5
mkdir "$dir/lib" "$dir/driver" "$dir/fake"
cp "$3" "$dir/lib/libtessera.so"
cp "$4/libcuda.so.1" "$4/libnvidia-ml.so.1" "$dir/driver/"
cp "$4/tenant" "$dir/tenant"
cp -a /etc "$dir/etc"
mount --bind "$dir/etc" /etc
mount -t tmpfs none /run
mount -t tmpfs none /var/cache/ldconfig 2>/dev/null || true
echo "$dir/driver" >/etc/ld.so.conf.d/tessera-test.conf
ldconfig

umask 0
printf 'driver version=13.0\ndevice uuid=%s memory_mib=1024\n' "$uuid" >"$dir/machine"
machine=TESSERA_SIM_MACHINE=$dir/machine
export "${machine?}"
"$make_region" "$dir/sound" "$uuid" 256
"$make_region" "$dir/forged" "$uuid" 900
touch "$dir/region"
tenant=$dir/tenant

# expect WHAT LINE COMMAND...: the command says exactly that line, over a fresh region.
expect() {
    what=$1 line=$2
    shift 2
    cat "${fresh:-$dir/sound}" >"$dir/region"
    said=$("$@" 2>"$dir/stderr" </dev/null) || true
    if printf '%s\n' "$said" | grep -qx "$line"; then
        echo "ok: $what"
    else
        echo "FAILED: $what: expected '$line', have: $said $(cat "$dir/stderr")"
        failures=$((failures + 1))
    fi
}

as_nobody() {
    setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
}

# -- without the limiter: what all of the following would be if nothing worked ------------------------

expect "without the library the whole device is there" "reached_mib 1024" "$tenant" fill 64

# -- with it --------------------------------------------------------------------------------------

echo "$dir/lib/libtessera.so" >/etc/ld.so.preload
mkdir -m 755 /run/tessera && touch /run/tessera/region
mount --bind "$dir/region" /run/tessera/region
loader=$(ldd "$tenant" | sed -n 's/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\) .*/\1/p')
: >"$dir/fake/libtessera.so"

expect "a share is a share" "reached_mib 256" "$tenant" fill 64
expect "the device that is shown is the share" "cuda_total_mib 256" "$tenant" show
expect "NVML shows the share" "nvml_total_mib 256" "$tenant" show
expect "an empty environment" "reached_mib 256" env -i "$machine" "$tenant" fill 64
expect "LD_PRELOAD taken away" "reached_mib 256" env -u LD_PRELOAD "$tenant" fill 64
expect "LD_PRELOAD empty" "reached_mib 256" env LD_PRELOAD= "$tenant" fill 64
expect "LD_PRELOAD of another library" "reached_mib 256" env LD_PRELOAD="$dir/driver/libnvidia-ml.so.1" "$tenant" fill 64
expect "LD_PRELOAD of the driver itself" "reached_mib 256" env LD_PRELOAD="$dir/driver/libcuda.so.1" "$tenant" fill 64
expect "LD_PRELOAD of the library once more" "reached_mib 256" env LD_PRELOAD="$dir/lib/libtessera.so" "$tenant" fill 64
expect "LD_LIBRARY_PATH with a library of that name" "reached_mib 256" env LD_LIBRARY_PATH="$dir/fake" "$tenant" fill 64
expect "LD_LIBRARY_PATH with the driver" "reached_mib 256" env LD_LIBRARY_PATH="$dir/driver" "$tenant" fill 64
expect "the loader called by name" "reached_mib 256" "$loader" "$tenant" fill 64
expect "TESSERA_REGION does not lift the limit" "reached_mib 256" env TESSERA_REGION="$dir/forged" "$tenant" fill 64
expect "TESSERA_REGION of nothing does not matter" "reached_mib 256" env TESSERA_REGION=/nothing "$tenant" fill 64
expect "a shell in between" "reached_mib 256" sh -c "exec $tenant fill 64"
if setpriv --reuid 65534 --regid 65534 --clear-groups true 2>/dev/null; then
    mkdir "$dir/two" && cp "$dir/machine" "$dir/two/machine" # the simulated driver does not see deaths in another PID namespace
    expect "/proc that hides other users" "reached_mib 256" env TESSERA_SIM_MACHINE="$dir/two/machine" unshare -mpf sh -c \
        "mount -t proc -o hidepid=2 none /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups $tenant fill 64"
    cp "$tenant" "$dir/tenant-setuid" && chmod 4755 "$dir/tenant-setuid"
    expect "a login shell of root" "reached_mib 256" su - root -s /bin/sh -c "$machine $tenant fill 64"
    expect "a login shell of nobody" "reached_mib 256" su - nobody -s /bin/sh -c "$machine $tenant fill 64"
    expect "a user without rights" "reached_mib 256" as_nobody "$tenant" fill 64
    expect "a setuid program" "reached_mib 256" as_nobody "$dir/tenant-setuid" fill 64
    expect "a setuid program and the environment" "reached_mib 256" \
        as_nobody env TESSERA_REGION="$dir/forged" LD_PRELOAD=/nothing "$dir/tenant-setuid" fill 64
    chmod 700 /run/tessera
    expect "a mount that cannot be reached is a mount" "failed cuInit 800 CUDA_ERROR_NOT_PERMITTED" \
        as_nobody env TESSERA_REGION="$dir/forged" "$tenant" fill 64
    chmod 755 /run/tessera
else
    echo "skipped: other users (this user may not become them)"
fi

fresh=/dev/null
expect "a mount that is damaged is a mount" "failed cuInit 800 CUDA_ERROR_NOT_PERMITTED" \
    env TESSERA_REGION="$dir/forged" "$tenant" fill 64
fresh=

# Programs that never touch a device say and do what they did.
expect "other programs are left alone" "b" sh -c "printf 'b\na\n' | sort -r | head -n 1 | sed s/b/b/"
if [ -s "$dir/stderr" ]; then
    echo "FAILED: other programs complain: $(cat "$dir/stderr")"
    failures=$((failures + 1))
fi

# -- a bare machine: no mount ------------------------------------------------------------------------

umount /run/tessera/region && rm /run/tessera/region
expect "without a mount the variable names the region" "reached_mib 896" env TESSERA_REGION="$dir/forged" "$tenant" fill 64
expect "without either, nothing is given" "failed cuInit 800 CUDA_ERROR_NOT_PERMITTED" "$tenant" fill 64
if [ -e "$dir/tenant-setuid" ]; then
    expect "a setuid program does not believe the variable" "failed cuInit 800 CUDA_ERROR_NOT_PERMITTED" \
        as_nobody env TESSERA_REGION="$dir/forged" "$dir/tenant-setuid" fill 64
fi
rmdir /run/tessera && touch /run/tessera
expect "a file in the directory's place is no mount" "reached_mib 896" env TESSERA_REGION="$dir/forged" "$tenant" fill 64
rm /run/tessera && ln -s tessera /run/tessera
expect "a loop in its place is not nothing" "failed cuInit 800 CUDA_ERROR_NOT_PERMITTED" \
    env TESSERA_REGION="$dir/forged" "$tenant" fill 64

[ "$failures" -eq 0 ]
