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
  --grace=S        after one has failed, seconds before the others get SIGTERM
                   (120)
  --kill-after=S   seconds from SIGTERM to SIGKILL, for saving (300)
  --dry-run        print what would be run
In COMMAND {i} is the process's number, {n} how many there are.
A signal is passed on as SIGTERM: each saves and ends with code 42. They get it,
too, if this script is killed.
EOF
}

processes=1 devices='' port='' independent=0 workdir='' env_file='' grace=120
kill_after=300
readonly simulated=--xla_force_host_platform_device_count

readonly OPTIONS=(
  --processes= --devices= --port= --independent --workdir= --env-file= --grace=
  --kill-after=
)

check_options() {
  check_natural --processes "$processes"
  ((processes > 0)) || die "--processes=0: give 1 or more"
  check_natural --grace "$grace"
  check_natural --kill-after "$kill_after"
  [[ -z $devices ]] || check_natural --devices "$devices"
  [[ -z $port ]] || check_natural --port "$port"
  check_env_file "$env_file"
  check_command "${command[@]}"
}

# A port that is free now; one drawn by chance may not be.
free_port() {
  python3 -I -c 'import socket
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
      "XLA_FLAGS=${flags:+$flags }$simulated=$devices"
    )
  fi
}

print_all() {
  local i flags=${XLA_FLAGS-}
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
  exec {lines}> >(exec {alive}>&-; number_lines "$1")
  writers+=("$!")
  exec_with "$env_file" "$env" "${settings[@]}" "${filled[@]}" \
    >&"$lines" 2>&1 </dev/null {alive}>&- {lines}>&- &
  pids[$1]=$!
  tell "$!"
  exec {lines}>&-
}

# Tells end_orphans.sh of a process; if that was killed, nothing.
tell() {
  { printf '%s\n' "$1" >&"$alive"; } 2>/dev/null || true
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

terminate_all() {
  terminated_at=${terminated_at:-$SECONDS}
  tell T
  stop_all TERM
}

# Ends processes that would wait forever for one that has failed, and those that
# SIGTERM doesn't end.
end_late() {
  if ((code)) && [[ -z $failed_at ]]; then
    failed_at=$SECONDS
  fi
  if [[ -n $failed_at && -z $terminated_at ]] &&
    ((SECONDS - failed_at >= grace)); then
    reaped=1
    terminate_all
  fi
  if [[ -n $terminated_at ]] && ((SECONDS - terminated_at > kill_after)); then
    ((!${#pids[@]})) || note "killing process ${!pids[*]}, ${kill_after} s" \
      "after SIGTERM"
    stop_all KILL
    terminated_at=$SECONDS
  fi
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
    tell "-${pids[i]}"
    unset "pids[$i]"
    # A process that this script ended isn't why the run ended.
    ((reaped)) || codes[i]=$status
    ((status == 0)) || note "process $i exited $status"
  done
}

main() {
  local i failed_at='' terminated_at=''
  pids=() codes=() writers=() reaped=0
  port=${port:-$(free_port)}
  env=$(type -P env)
  flags=$(value_with "$env_file" XLA_FLAGS)
  # This script alone holds its input open.
  exec {alive}> >(exec "$here/end_orphans.sh" "$kill_after")
  trap terminate_all INT TERM HUP
  trap : PIPE
  for ((i = 0; i < processes; i++)); do
    start "$i"
  done
  while ((${#pids[@]})); do
    collect_codes
    # Processes that waited for the first to fail may die of that (134).
    ((code && !independent)) || code=$(worst "${codes[@]}")
    end_late
  done
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
