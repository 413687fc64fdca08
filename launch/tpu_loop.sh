# shellcheck shell=bash disable=SC2154
# The loop that keeps a run on a TPU slice going; sourced by tpu.sh.
#
#   not there or not usable   delete, create, wait until it is ready
#   ready                     start the command on all workers, watch them
#   0, 1, 3, 4, 5             the end, with that code
#   42, 127 and above, lost   again, later and later, while checkpoints advance
#
# What isn't assigned here is set by tpu.sh.

# best: the last step that an attempt found saved. idle: attempts since it
# moved. spent: seconds with a ready slice, up to ready_at. trouble: in words,
# why an attempt has no exit code of the command.
best=-1 idle=0 spent=0 ready_at='' trouble='' follower='' failed_in_a_row=0

keep_going() {
  note "to stop the costs: launch/tpu.sh stop --run=$run, or" \
    "$(quoted "${delete_command[@]}")"
  # A trap may run in the middle of a read, whose input is gcloud's words then.
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

# One try from whatever there is to the command's exit code.
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

# Says why there is no exit code of the command, in the place of one.
give_trouble() {
  trouble=$1
  return 255
}

# --- Before the start -------------------------------------------------------

get_ready() {
  local state seen='' unknown=0
  while true; do
    read -r state workers < <(look)
    [[ $state == "$seen" ]] || note "$run is $state"
    seen=$state
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
        ((unknown < 10)) || give_trouble 'gcloud has no answer' || return
        ;;
    esac
    pause "$poll"
  done
}

# All workers must say that they have the bundle that we sent: workers with
# different programs wait for each other forever.
prepare_all() {
  local said count
  if ! said=$(prepare); then
    printf '%s\n' "$said" >&2
    give_trouble 'not all workers could be set up'
    return
  fi
  count=$(grep -c "^prm-jax worker [0-9]* of $workers: bundle $sha\$" \
    <<<"$said" || true)
  if ((count != workers)); then
    give_trouble "$count of $workers workers have the bundle $sha"
  fi
}

read_step() {
  local said step
  said=$(call_worker 0 step) || give_trouble 'worker 0 has no answer' || return
  [[ $said =~ prm-jax\ step\ (-?[0-9]+) ]] ||
    give_trouble "worker 0 doesn't know its last step" || return
  step=${BASH_REMATCH[1]}
  note "begins behind step $step"
  if ((step > best)); then
    best=$step idle=0
  fi
}

# --- While it runs ----------------------------------------------------------

# Returns the exit code of the first worker to fail; of several that failed
# between two looks, and of independent ones, the largest.
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
      ((unknown < 10)) || give_trouble 'the workers have no answer' || return
      continue
    fi
    unknown=0
    # Those that waited for it, or that we stop, don't say why the run ended.
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

# Sets `codes` and `running` from the workers' own words; fails unless all
# have spoken.
read_codes() {
  local said line
  said=$(call_worker all status 2>/dev/null) || return 1
  codes=() running=0
  while IFS= read -r line; do
    if [[ $line =~ ^prm-jax\ worker\ [0-9]+\ of\ [0-9]+:\ exited\ ([0-9]+)$ ]]
    then
      codes+=("${BASH_REMATCH[1]}")
    elif [[ $line =~ ^prm-jax\ worker\ [0-9]+\ of\ [0-9]+:\ running$ ]]; then
      running=$((running + 1))
    fi
  done <<<"$said"
  ((${#codes[@]} + running == workers))
}

# The log of worker 0, in a process group of its own: what ssh starts goes with
# it, and Ctrl-C is ours alone.
follow() {
  set -m
  call_worker 0 follow 2>/dev/null &
  follower=$!
  set +m
  disown "$follower"
}

# Waits for its last lines for $1 tenths of a second.
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
  note "--max-hours=$max_hours are over; go on with" \
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
    note "no new checkpoint in $idle attempts; gives up"
    # What went wrong before the command began, its user must mend.
    [[ -z $trouble ]] || code=1
    finish "$code"
  fi
  replace_if_stubborn
  delay=$((backoff << (idle < 6 ? idle - 1 : 5)))
  ((delay <= 600)) || delay=600
  # Not all at once, where many runs lost their slices together.
  delay=$((delay + RANDOM % (delay + 1)))
  note "tries again in $delay s ($idle of $retries without a new checkpoint)"
  pause "$delay"
}

# A slice that can't be set up twice in a row has a broken worker.
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
    note "$run is kept and costs money; delete it:" \
      "$(quoted "${delete_command[@]}")"
  elif [[ $(look) != NONE ]]; then
    drop_slice
  fi
  note "run $run exited $1"
  exit "$1"
}

# Ctrl-C: is the slice to go on alone, or to go?
interrupted() {
  local answer=$at_end
  trap '' INT TERM
  stop_following
  if [[ $answer == ask ]]; then
    answer=keep
    if [[ -t $terminal ]]; then
      read -r -u "$terminal" -p \
        "delete $run? It saves first. Otherwise it runs on [y/N] " answer ||
        true
      [[ $answer != [yY]* ]] || answer=delete
    fi
  fi
  if [[ $answer == delete ]]; then
    call_worker all 'stop 300' >&2 || true
    drop_slice
  else
    note "$run runs on and costs money; go on: launch/tpu.sh resume" \
      "--run=$run; delete: $(quoted "${delete_command[@]}")"
  fi
  exit 130
}
