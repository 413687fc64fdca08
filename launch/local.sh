#!/usr/bin/env bash
# Runs a command as N processes on this machine:
#
#   launch/local.sh --processes=2 -- prm-jax train --config=FILE --workdir=DIR
#
# The command gets JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
# JAX_PROCESS_ID. Exit code: that of the first to fail; with --independent the
# largest.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=common.sh
source "$here/common.sh"

usage() {
  cat <<'EOF'
launch/local.sh [OPTION]... -- COMMAND...
  --processes=N    how many (1)
  --devices=D      each with D simulated CPU devices
  --port=P         of process 0; a free one by default
  --independent    they don't know of each other: for --shard={i}/{n}
  --workdir=DIR    what {workdir} stands for in COMMAND
  --env-file=FILE  NAME=VALUE a line, mode 0600
  --grace=S        after one has failed, seconds before the others get SIGTERM,
                   and again before they get SIGKILL (120)
  --dry-run        print what would be run
In COMMAND {i} is the process's number, {n} how many there are.
A signal is passed on as SIGTERM: each saves and ends with code 42.
EOF
}

processes=1 devices='' port='' independent=0 workdir='' env_file='' grace=120
readonly simulated=--xla_force_host_platform_device_count

readonly OPTIONS=(
  --processes= --devices= --port= --independent --workdir= --env-file= --grace=
)

check_options() {
  check_natural --processes "$processes"
  ((processes > 0)) || die "--processes=0: give 1 or more"
  check_natural --grace "$grace"
  [[ -z $devices ]] || check_natural --devices "$devices"
  [[ -z $port ]] || check_natural --port "$port"
  check_env_file "$env_file"
  check_command "${command[@]}"
}

# A port that is free now; one drawn by chance may not be.
free_port() {
  python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'
}

# Sets `settings` to what process $1 has in its environment.
set_up() {
  settings=()
  if ((!independent)); then
    settings+=(
      "JAX_COORDINATOR_ADDRESS=127.0.0.1:$port"
      "JAX_NUM_PROCESSES=$processes"
      "JAX_PROCESS_ID=$1"
    )
  fi
  if [[ -n $devices ]]; then
    settings+=(
      JAX_PLATFORMS=cpu
      "XLA_FLAGS=${XLA_FLAGS:+$XLA_FLAGS }$simulated=$devices"
    )
  fi
}

print_all() {
  local i
  port=${port:-PORT}
  [[ -z $env_file ]] || remark "with the variables in $env_file"
  for ((i = 0; i < processes; i++)); do
    set_up "$i"
    fill_in "$i" "$processes" "$workdir" "${command[@]}"
    quoted env "${settings[@]}" "${filled[@]}"
  done
}

# Starts process $1; its lines are printed after its number.
start() {
  set_up "$1"
  fill_in "$1" "$processes" "$workdir" "${command[@]}"
  local lines
  exec {lines}> >(number_lines "$1")
  writers+=("$!")
  env "${settings[@]}" "${filled[@]}" >&"$lines" 2>&1 </dev/null &
  pids[$1]=$!
  exec {lines}>&-
}

number_lines() {
  # It must outlive the process whose lines it prints.
  trap '' INT TERM HUP
  local line
  while IFS= read -r line || [[ -n $line ]]; do
    printf '[%s] %s\n' "$1" "$line"
  done
}

stop_all() {
  local i
  for i in "${!pids[@]}"; do
    kill "-$1" "${pids[i]}" 2>/dev/null || true
  done
}

# Ends processes that would wait forever for one that has failed.
reap() {
  trap 'kill "$!"; exit' TERM
  pause "$grace"
  kill -USR1 "$$"
  pause "$grace"
  kill -USR2 "$$"
}

# Waits a little, then sets the `codes` of the processes that have ended. This
# isn't `wait -n`, which misses one that ends while a signal is handled.
collect_codes() {
  local i status
  pause 0.1
  for i in "${!pids[@]}"; do
    kill -0 "${pids[i]}" 2>/dev/null && continue
    status=0
    wait "${pids[i]}" || status=$?
    unset "pids[$i]"
    # A process that this script ended isn't why the run ended.
    ((reaped)) || codes[i]=$status
    ((status == 0)) || note "process $i exited $status"
  done
}

main() {
  local i reaper=''
  pids=() codes=() writers=() reaped=0
  port=${port:-$(free_port)}
  [[ -z $env_file ]] || load_env_file "$env_file"
  trap 'stop_all TERM' INT TERM HUP
  trap 'reaped=1; stop_all TERM' USR1
  trap 'stop_all KILL' USR2
  for ((i = 0; i < processes; i++)); do
    start "$i"
  done
  while ((${#pids[@]})); do
    collect_codes
    # Processes that waited for the first to fail may die of that (134).
    ((code && !independent)) || code=$(worst "${codes[@]}")
    if [[ $code != 0 && -z $reaper ]] && ((${#pids[@]})); then
      reap >/dev/null 2>&1 &
      reaper=$!
    fi
  done
  [[ -z $reaper ]] || kill "$reaper" 2>/dev/null || true
  await_last_lines
  exit "$code"
}

# A child that a process has left may hold its output open for long.
await_last_lines() {
  await_end 20 "${writers[@]}"
  kill -KILL "${writers[@]}" 2>/dev/null || true
}

check_bash 4 4
read_options "$@"
check_options
if ((dry_run)); then
  print_all
else
  main
fi
