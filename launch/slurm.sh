#!/usr/bin/env bash
# Submits a run to SLURM, and queues it again after a preemption:
#
#   launch/slurm.sh run --workdir=/shared/runs/mine --nodes=2
#     -- prm-jax train --config=FILE --workdir={workdir}
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=common.sh
source "$here/common.sh"

usage() {
  cat <<'EOF'
launch/slurm.sh run [OPTION]... -- COMMAND...   write a batch script, submit it
launch/slurm.sh resume --run=RUN                submit it again
launch/slurm.sh status|logs|stop --run=RUN
  --workdir=DIR         a folder that all nodes have, as an absolute path
  --run=RUN             the run's permanent name; made from the time by default
  --nodes=N             how many (1)
  --tasks-per-node=N    processes on each (1)
  --shards=N            or N jobs of one node that don't know of each other,
                        for --shard={i}/{n}
  --time=T              a job's limit (24:00:00)
  --sbatch=FLAG         another flag for sbatch, such as
                        --sbatch=--gpus-per-node=8; may be repeated
  --setup=FILE          bash that each job sources first: module load, a venv
  --env-file=FILE       secrets: NAME=VALUE a line, mode 0600; all nodes read it
  --retries=K           jobs in a row without a new checkpoint (5); a shard
                        writes none, so each of its restarts counts
  --grace=S             seconds from the failure of a process to the end of the
                        others (60)
  --dry-run             print the batch script and the command
In COMMAND {workdir}, {i} and {n} are the workdir, the number of the process (of
the shard) and how many there are.
EOF
}

workdir='' nodes=1 tasks_per_node=1 shards='' time=24:00:00 flags=()
setup='' env_file='' retries=5 grace=60 folder=''

readonly OPTIONS=(
  --run= --workdir= --nodes= --tasks-per-node= --shards= --time=
  --sbatch=:flags+ --setup= --env-file= --retries= --grace=
)

check_options() {
  local flag
  need --workdir "$workdir" /A/SHARED/FOLDER
  check_workdir "$workdir"
  check_natural --nodes "$nodes"
  check_natural --tasks-per-node "$tasks_per_node"
  [[ -z $shards ]] || check_natural --shards "$shards"
  ((nodes > 0 && tasks_per_node > 0 && ${shards:-1} > 0)) ||
    die "--nodes, --tasks-per-node and --shards are 1 or more"
  check_natural --retries "$retries"
  check_natural --grace "$grace"
  check_word --time "$time"
  for flag in "${flags[@]}"; do
    check_word --sbatch "$flag"
  done
  check_env_file "$env_file"
  [[ -z $setup || -f $setup ]] || die "--setup=$setup: doesn't exist"
  check_command "${command[@]}"
}

absolute() {
  [[ -z $1 || $1 == /* ]] && printf '%s\n' "$1" || printf '%s\n' "$PWD/$1"
}

# --- The batch script -------------------------------------------------------

write_script() {
  write_head
  # The batch script has the same functions as this one.
  local name
  for name in note die restarts wait_for fill_in latest_step list_steps \
    read_env_file exec_with become; do
    sed -n "/^$name() {/,/^}/p" "$here/common.sh"
    printf '\n'
  done
  cat <<'EOF'
# SLURM sends SIGTERM to this script alone, 300 s before the limit; srun passes
# it on to all processes.
filled=() code=0 signalled=0 step=''
trap 'signalled=1; kill -TERM "$step" 2>/dev/null' TERM

# Sourced scripts, such as those of modules, read variables that aren't set.
set +u
# shellcheck source=/dev/null
[[ -z $setup ]] || source "$setup"
set -u
before=$(latest_step "$workdir")
ended=$folder/ended-$SLURM_JOB_ID
rm -rf "$ended"
mkdir "$ended"

# One process of the job.
run_task() {
  local settings=()
  trap 'signalled=1' TERM
  [[ -z $coordinator ]] || settings=(
    "JAX_COORDINATOR_ADDRESS=$coordinator"
    "JAX_NUM_PROCESSES=$SLURM_NTASKS"
    "JAX_PROCESS_ID=$SLURM_PROCID"
  )
  exec_with "$env_file" "$(type -P env)" "${settings[@]}" \
    "${@//"{i}"/"$SLURM_PROCID"}" &
  wait_for "$!"
  # srun kills the other processes when one fails, and returns the largest code,
  # which is theirs. So the first to fail writes its code, and waits until the
  # others have saved.
  ((code == 0)) || (set -C && echo "$code" >"$ended/first") 2>/dev/null
  : >"$ended/$SLURM_PROCID"
  local second all
  for ((second = 0; code && second < grace; second++)); do
    all=("$ended"/[0-9]*)
    ((${#all[@]} < SLURM_NTASKS)) || break
    sleep 1
  done
  exit "$code"
}
export ended grace env_file coordinator=''
export -f run_task wait_for exec_with note die read_env_file become

EOF
  if [[ -n $shards ]]; then
    cat <<'EOF'
# {i} is the shard's number.
counter+=$SLURM_ARRAY_TASK_ID
fill_in "$SLURM_ARRAY_TASK_ID" "$shards" "$workdir" "${command[@]}"
EOF
  else
    cat <<'EOF'
# {i} is the process's number, which srun sets; the port follows from the job's
# number, as in jax on SLURM.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
coordinator=$first:$((61440 + SLURM_JOB_ID % 4096))
fill_in '{i}' "$SLURM_NTASKS" "$workdir" "${command[@]}"
EOF
  fi
  cat <<'EOF'
srun --kill-on-bad-exit=1 bash -c 'run_task "$@"' task "${filled[@]}" &
step=$!
wait_for "$step"
[[ ! -s $ended/first ]] || code=$(<"$ended/first")
after=$(latest_step "$workdir")
note "exited $code; last checkpoint: step $after"
restarts "$code" && [[ ! -e $folder/stop ]] || exit "$code"

# Queue it again, unless too many jobs in a row wrote no checkpoint.
idle=0
((after > before)) || idle=$(($(cat "$counter" 2>/dev/null || echo 0) + 1))
echo "$idle" >"$counter"
if ((idle > retries)); then
  note "no new checkpoint in $idle jobs; giving up"
  exit "$code"
fi
scontrol requeue "$SLURM_JOB_ID"
exit "$code"
EOF
}

write_head() {
  local flag log=log-%j counter=idle
  if [[ -n $shards ]]; then
    log=log-%A-%a counter=idle-
  fi
  printf '#!/usr/bin/env bash\n'
  printf '#SBATCH %s\n' --job-name="$run" --nodes="$nodes" \
    --ntasks-per-node="$tasks_per_node" --time="$time" --requeue \
    --signal=B:TERM@300 --open-mode=append --output="$folder/$log"
  [[ -z $shards ]] || printf '#SBATCH --array=0-%s\n' "$((shards - 1))"
  for flag in "${flags[@]}"; do
    printf '#SBATCH %s\n' "$flag"
  done
  printf 'set -uo pipefail\n\n'
  printf 'command=(%s)\n' "$(quoted "${command[@]}")"
  printf '%s=%q\n' workdir "$workdir" shards "$shards" retries "$retries" \
    setup "$(absolute "$setup")" env_file "$(absolute "$env_file")" \
    grace "$grace" folder "$folder" counter "$folder/$counter"
  printf '\n'
}

# --- Commands ---------------------------------------------------------------

begin_run() {
  name_run
  check_options
  folder=$PWD/.launch/$run
  check_word 'the current folder' "$folder"
  local script=.launch/$run/job.sbatch
  if ((dry_run)); then
    remark "$script:"
    write_script
    act sbatch "$script"
    return
  fi
  [[ ! -e .launch/$run ]] || die "--run=$run: this run exists; resume" \
    "it: launch/slurm.sh resume --run=$run"
  check_config "${command[@]}"
  mkdir -p ".launch/$run"
  write_script >"$script"
  sbatch "$script"
  note "to stop it: launch/slurm.sh stop --run=$run"
}

# The run's jobs save, end and aren't queued again.
stop_run() {
  act touch ".launch/$run/stop"
  act scancel --name="$run" --state=PENDING
  act scancel --name="$run" --signal=TERM --batch
}

resume_run() {
  act rm -f ".launch/$run/stop" ".launch/$run"/idle*
  act sbatch ".launch/$run/job.sbatch"
}

main() {
  local what=${1-}
  read_options "${@:2}"
  case $what in
    run) begin_run && return ;;
    resume | status | logs | stop) check_run ;;
    '' | --help | -h) usage && return ;;
    *) die "$what: expected run, resume, status, logs or stop; see --help" ;;
  esac
  [[ -d .launch/$run ]] || die "--run=$run: no such run in .launch"
  case $what in
    status) act squeue --name="$run" ;;
    logs) act tail --lines=1000 ".launch/$run"/log-* ;;
    resume) resume_run ;;
    stop) stop_run ;;
  esac
}

check_bash 4 4
main "$@"
