# What the scripts of this folder share: where things lie, and how packages get here. Sourced.

target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/engines/docker" "$target/engines/cache"
engines=$(cd "$target/engines" && pwd)
docker=$engines/docker
cache=$engines/cache

say() { printf '%s\n' "$*" >&2; }

missing=()
need() { # package, a file or command that it brings
  command -v "$2" >/dev/null 2>&1 || [[ -e $2 ]] || missing+=("$1")
}
install_missing() {
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    say "these packages are missing: ${missing[*]}; install them, or run this as root"
    exit 1
  fi
  say "installing ${missing[*]}"
  apt-get -o DPkg::Lock::Timeout=300 update -qq
  # The package would start an engine of its own: nothing here needs that one.
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
