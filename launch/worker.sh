#!/usr/bin/env bash
# Runs on each worker of a TPU slice; launch/tpu.sh copies it there and calls it
# by ssh.
#
#   worker.sh install   install what the run needs, once
#   worker.sh start     start the command, unless it runs
#   worker.sh status    one line: running, or the exit code
#   worker.sh follow    the log, until the command ends
#   worker.sh stop [S]  SIGTERM, and after S seconds SIGKILL
#   worker.sh step      the last step with a whole checkpoint
#
# Its folder holds common.sh, settings, command (words that end in NUL), env
# (secrets, mode 0600), files/ (where the command runs) and, later, venv/,
# run.log, pid, child and code.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
# shellcheck source=common.sh
source ./common.sh

# The file settings has one NAME=VALUE a line.
workdir='' logs='' extras='' wheel='' independent=0
# shellcheck source=/dev/null
source ./settings

# The coordinator's port, as in jax; and that of a slice of one process.
readonly PORT=8482 TPU_PORT=8476

metadata() {
  local url=http://metadata.google.internal/computeMetadata/v1/instance
  curl --fail --silent --retry 5 --header 'Metadata-Flavor: Google' \
    "$url/attributes/$1"
}

# Sets i, n and first: this worker's number, how many there are, and the
# address of number 0. An endpoint is ADDRESS or NAME:ID:ADDRESS, as in
# jax/_src/clusters/cloud_tpu_cluster.py.
find_place() {
  local all endpoints
  i=$(metadata agent-worker-number)
  all=$(metadata worker-network-endpoints)
  IFS=, read -r -a endpoints <<<"$all"
  n=${#endpoints[@]}
  first=${endpoints[0]##*:}
}

say() {
  printf 'prm-jax worker %s of %s: %s\n' "$i" "$n" "$*"
}

# Prints a Python that prm_jax runs on; that of Ubuntu 22.04 is 3.10, too old.
find_python() {
  local python
  for python in python3 python3.13 python3.12 python3.11; do
    if "$python" -I -c \
      'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
    then
      printf '%s\n' "$python"
      return
    fi
  done
  sudo apt-get -qq update >&2
  sudo apt-get -qq install -y python3.11-venv >&2
  printf 'python3.11\n'
}

install() {
  local sum
  sum=$(sha256_of bundle.tar.gz)
  if [[ ! -f installed || $(<installed) != "$sum" ]]; then
    if [[ -n $wheel ]]; then
      rm -rf venv
      "$(find_python)" -I -m venv venv
      venv/bin/pip install --quiet "./${wheel}[$extras]"
    fi
    mkdir -p files
    if [[ -f setup ]]; then
      (cd files && bash ../setup)
    fi
    printf '%s\n' "$sum" >installed
  fi
  say "bundle $sum"
}

# Whether `main` or, if that was killed, the command is still there.
is_running() {
  local file
  for file in pid child; do
    [[ ! -f $file ]] || ! kill -0 "$(<"$file")" 2>/dev/null || return 0
  done
  return 1
}

start() {
  if is_running; then
    say 'runs already'
    return
  fi
  drop_stale_lock
  rm -f code child
  # A session of its own keeps running when the connection is lost.
  setsid nohup bash ./worker.sh main >>run.log 2>&1 </dev/null &
  printf '%s\n' "$!" >pid
  say started
}

# A killed process leaves libtpu's lock; it is removed if no process has the
# chips.
drop_stale_lock() {
  local lock=/tmp/libtpu_lockfile
  if [[ -e $lock ]] && command -v fuser >/dev/null; then
    sudo fuser --silent /dev/accel* /dev/vfio/* "$lock" 2>/dev/null ||
      sudo rm -f "$lock" || true
  fi
}

# Sets `settings` to what the command has in its environment besides the
# secrets: for jax, the process number and the coordinator. Independent workers
# don't know of each other: each takes its own four chips as a slice (the
# variables are those of jax/_src/test_multiprocess.py).
set_up() {
  settings=(
    "PATH=$PWD/venv/bin:$(value_with ./env PATH)"
    # A stalled connection to the bucket is opened again.
    TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS=60
    TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES=1024
  )
  if ((!independent)); then
    settings+=(
      "JAX_COORDINATOR_ADDRESS=$first:$PORT"
      "JAX_NUM_PROCESSES=$n"
      "JAX_PROCESS_ID=$i"
    )
  elif ((n > 1)); then
    settings+=(
      "TPU_PROCESS_BOUNDS=1,1,1"
      "TPU_CHIPS_PER_PROCESS_BOUNDS=2,2,1"
      "TPU_PROCESS_ADDRESSES=localhost:$TPU_PORT"
      "TPU_PROCESS_PORT=$TPU_PORT"
      CLOUD_TPU_TASK_ID=0
    )
  fi
}

# Runs the command and keeps its code; `start` calls this in the background.
main() {
  local words settings pusher='' env
  env=$(type -P env)
  set_up
  ulimit -n 100000 2>/dev/null || true
  mapfile -d '' -t words <./command
  fill_in "$i" "$n" "$workdir" "${words[@]}"
  # A machine that shuts down signals all processes. If this one passed its
  # signal on, the command would get a second one, and end without saving.
  trap 'signalled=1' TERM INT HUP
  (cd files && exec_with ../env "$env" "${settings[@]}" "${filled[@]}") &
  printf '%s\n' "$!" >child
  if [[ -n $logs ]]; then
    push_every_minute &
    pusher=$!
  fi
  wait_for "$(<child)"
  say "exited $code"
  [[ -z $pusher ]] || kill "$pusher" 2>/dev/null || true
  push
  printf '%s\n' "$code" >code.part
  mv code.part code
}

push_every_minute() {
  while sleep 60; do
    push
  done
}

push() {
  if [[ -n $logs ]]; then
    gcloud storage cp --quiet run.log "$logs/worker-$i.log" >/dev/null 2>&1 ||
      true
  fi
}

status() {
  if is_running; then
    say running
  elif [[ -f code ]]; then
    say "exited $(<code)"
  else
    # It left no code: it was killed, or the machine has restarted.
    say 'exited 137'
  fi
}

follow() {
  tail --pid="$(<pid)" --lines=50 --follow=name --retry run.log 2>/dev/null
}

stop() {
  if is_running; then
    kill -TERM "$(<child)" 2>/dev/null || true
    await_end "$(($1 * 10))" "$(<pid)" "$(<child)"
    if is_running; then
      kill -KILL -- "-$(<pid)" || true
    fi
  fi
  # The secrets are no longer needed.
  : >./env
  status
}

main_of_worker() {
  local what=$1
  if [[ $what != step && $what != follow ]]; then
    find_place
  fi
  case $what in
    step) printf 'prm-jax step %s\n' "$(latest_step "$workdir")" ;;
    stop) stop "${2:-300}" ;;
    install | start | main | status | follow) "$what" ;;
    *) die "$what: expected install, start, status, follow, stop or step" ;;
  esac
}

main_of_worker "$@"
