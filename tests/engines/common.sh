# What the scripts of this folder share: where things lie, and how packages get here. Sourced.

target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/engines/docker" "$target/engines/podman" "$target/engines/cluster"
engines=$(cd "$target/engines" && pwd -P)
docker=$engines/docker
podman=$engines/podman
cluster=$engines/cluster

say() { printf '%s\n' "$*" >&2; }

# These scripts run beside each other: not every lock of apt is waited for, and where apt keeps no
# packages, the end of any run of it removes what another has just fetched.
one_apt() { flock "$engines/apt.lock" "$@"; }

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
  one_apt apt-get -o DPkg::Lock::Timeout=300 update -qq
  # The package would start an engine of its own: nothing here needs that one.
  DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    one_apt apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

alive() { # pid file
  [[ -s $1 ]] && kill -0 "$(<"$1")" 2>/dev/null
}
await() { # what, its log, and the command that succeeds when it is up
  local what=$1 log=$2
  shift 2
  for _ in {1..300}; do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  say "$what does not answer; the end of $log:"
  tail -20 "$log" >&2
  exit 1
}
stop() { # pid file, which lies in the folder that its process works in
  [[ -s $1 ]] || return 0
  local pid
  pid=$(<"$1")
  # A pid file that outlived a crash may name a stranger by now.
  if [[ $(readlink "/proc/$pid/cwd") == "$(dirname "$1")" ]]; then
    kill "$pid"
    for _ in {1..300}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
  fi
  rm -f "$1"
}
