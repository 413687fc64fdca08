# shellcheck shell=bash disable=SC2154
# The loop that keeps a run on a TPU slice going; sourced by tpu.sh.
#
#   no slice, or a broken one   delete, create, wait until it is ready
#   a ready slice               start the command on all workers, watch them
#   0, 1, 3, 4, 5               end with that code
#   42, 127 and above, lost     try again after growing waits, as long as
#                               checkpoints advance
#
# tpu.sh sets the variables that aren't assigned here.

# best: the last saved step. idle: attempts since best grew. spent: seconds with
# a ready slice, up to ready_at. trouble: a message that says why an attempt has
# no exit code of the command.
best=-1 idle=0 spent=0 ready_at='' trouble='' follower='' failed_in_a_row=0

keep_going() {
  note "to stop the costs: launch/tpu.sh stop --run=$run, or" \
    "$(quoted "${delete_command[@]}")"
  # A trap may run during a read, when standard input is the output of gcloud.
  { exec {terminal}<&0; } 2>/dev/null || exec {terminal}</dev/null
  trap 'interrupted' INT TERM
  while true; do
    code=0
    attempt || code=$?
    printf '%s code=%s step=%s %s\n' "$(date -u +%FT%TZ)" "$code" "$best" \
      "$trouble" >>"$(folder)/attempts"
    if [[ -z $trouble ]] && ! restarts "$code"; then
      finish "$code"
    fi
    before_next
  done
}

# Makes one attempt: gets a slice, starts the command, returns its exit code.
attempt() {
  trouble=''
  get_ready || return
  prepare_all || return
  read_step || return
  if ! call_worker all start >&2; then
    give_trouble 'not all workers could be started'
    return
  fi
  failed_in_a_row=0
  watch_workers
}

# Sets `trouble`, and returns a code in place of the command's.
give_trouble() {
  trouble=$1
  return 255
}

# --- Before the start -------------------------------------------------------

get_ready() {
  local state previous='' unknown=0
  while true; do
    read -r state workers < <(look)
    [[ $state == "$previous" ]] || note "$run is $state"
    previous=$state
    case $state in
      READY)
        ready_at=${ready_at:-$SECONDS}
        return 0
        ;;
      NONE)
        create >&2 || give_trouble 'it could not be created' || return
        ;;
      SUSPENDING | SUSPENDED | FAILED | LOST)
        drop_slice
        give_trouble "it was $state"
        return
        ;;
      UNKNOWN)
        unknown=$((unknown + 1))
        ((unknown < 10)) || give_trouble 'gcloud does not answer' || return
        ;;
    esac
    pause "$poll"
  done
}

# All workers must report the digest of the bundle that was sent: workers with
# different programs wait for each other forever.
prepare_all() {
  local reply count
  if ! reply=$(prepare); then
    printf '%s\n' "$reply" >&2
    give_trouble 'not all workers could be set up'
    return
  fi
  count=$(grep -c "^prm-jax worker [0-9]* of $workers: bundle $sha\$" \
    <<<"$reply" || true)
  if ((count != workers)); then
    give_trouble "$count of $workers workers have the bundle $sha"
  fi
}

read_step() {
  local reply step
  reply=$(call_worker 0 step) ||
    give_trouble 'worker 0 does not answer' || return
  [[ $reply =~ prm-jax\ step\ (-?[0-9]+) ]] ||
    give_trouble "worker 0 doesn't know its last step" || return
  step=${BASH_REMATCH[1]}
  note "starting after step $step"
  if ((step > best)); then
    best=$step idle=0
  fi
}

# --- While it runs ----------------------------------------------------------

# Returns the exit code of the first worker to fail; of several that failed
# between two polls, and of independent ones, the largest.
watch_workers() {
  local state unknown=0 failed_at='' early=0 told=0
  follow
  while true; do
    pause "$poll"
    count_hours
    ((spent < max_hours * 3600)) || out_of_hours
    read -r state _ < <(look)
    if [[ $state != READY && $state != UNKNOWN ]]; then
      stop_following
      note "$run is $state"
      drop_slice
      give_trouble "it was $state"
      return
    fi
    if [[ $state == UNKNOWN ]] || ! read_codes; then
      unknown=$((unknown + 1))
      ((unknown < 10)) || give_trouble 'the workers do not answer' || return
      continue
    fi
    unknown=0
    # Workers that waited for the first to fail, or that this loop stops, aren't
    # why the run ended.
    ((told || early && !independent)) || early=$(worst "${codes[@]}")
    if ((running == 0)); then
      stop_following 30
      note "workers exited ${codes[*]}"
      return "$early"
    fi
    if ((early)); then
      failed_at=${failed_at:-$SECONDS}
      if ((!told && SECONDS - failed_at >= grace)); then
        told=1
        call_worker all 'stop 60' >&2 || true
      fi
    fi
  done
}

# Sets `codes` and `running` from the workers' replies; fails unless all have
# replied.
read_codes() {
  local reply line
  reply=$(call_worker all status 2>/dev/null) || return 1
  codes=() running=0
  while IFS= read -r line; do
    if [[ $line =~ ^prm-jax\ worker\ [0-9]+\ of\ [0-9]+:\ exited\ ([0-9]+)$ ]]
    then
      codes+=("${BASH_REMATCH[1]}")
    elif [[ $line =~ ^prm-jax\ worker\ [0-9]+\ of\ [0-9]+:\ running$ ]]; then
      running=$((running + 1))
    fi
  done <<<"$reply"
  ((${#codes[@]} + running == workers))
}

# Prints the log of worker 0, from a process group of its own: so it ends with
# all that ssh starts, and Ctrl-C reaches this script alone.
follow() {
  set -m
  call_worker 0 follow 2>/dev/null &
  follower=$!
  set +m
  disown "$follower"
}

# Ends the log, after up to $1 tenths of a second for its last lines.
stop_following() {
  [[ -n $follower ]] || return 0
  await_end "${1:-0}" "$follower"
  kill -TERM -- "-$follower" 2>/dev/null || true
  follower=''
}

count_hours() {
  if [[ -n $ready_at ]]; then
    spent=$((spent + SECONDS - ready_at)) ready_at=$SECONDS
  fi
}

drop_slice() {
  count_hours
  ready_at=''
  delete_slice || true
}

out_of_hours() {
  note "--max-hours=$max_hours have passed; continue with" \
    "launch/tpu.sh resume --run=$run --max-hours=H"
  call_worker all 'stop 300' >&2 || true
  finish 42
}

# --- Afterwards -------------------------------------------------------------

# Waits before the next attempt, or ends the run.
before_next() {
  local delay
  stop_following
  note "${trouble:-exited $code}; last checkpoint: step $best"
  idle=$((idle + 1))
  if ((idle > retries)); then
    note "no new checkpoint in $idle attempts; giving up"
    # The user must fix what went wrong before the command started.
    [[ -z $trouble ]] || code=1
    finish "$code"
  fi
  replace_if_stubborn
  delay=$((backoff << (idle < 6 ? idle - 1 : 5)))
  ((delay <= 600)) || delay=600
  # Runs that lost their slices together shouldn't all try again together.
  delay=$((delay + RANDOM % (delay + 1)))
  note "trying again in $delay s ($idle of $retries without a new checkpoint)"
  pause "$delay"
}

# Deletes a slice that couldn't be set up twice in a row: a worker is broken.
replace_if_stubborn() {
  if [[ $trouble == *worker* ]]; then
    failed_in_a_row=$((failed_in_a_row + 1))
    if ((failed_in_a_row >= 2)); then
      failed_in_a_row=0
      drop_slice
    fi
  fi
}

finish() {
  stop_following
  if [[ $at_end == keep ]]; then
    note "$run is kept and costs money; to delete it:" \
      "$(quoted "${delete_command[@]}")"
  elif [[ $(look) != NONE ]]; then
    drop_slice
  fi
  note "run $run exited $1"
  exit "$1"
}

# On Ctrl-C asks whether to delete the slice or to leave it running.
interrupted() {
  local answer=$at_end
  trap '' INT TERM
  stop_following
  if [[ $answer == ask ]]; then
    answer=keep
    if [[ -t $terminal ]]; then
      read -r -u "$terminal" -p \
        "delete $run? It saves first. Otherwise it keeps running [y/N] " \
        answer || true
      [[ $answer != [yY]* ]] || answer=delete
    fi
  fi
  if [[ $answer == delete ]]; then
    call_worker all 'stop 300' >&2 || true
    drop_slice
  else
    note "$run keeps running and costs money; to resume: launch/tpu.sh resume" \
      "--run=$run; to delete: $(quoted "${delete_command[@]}")"
  fi
  exit 130
}
