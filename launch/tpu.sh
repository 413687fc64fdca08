#!/usr/bin/env bash
# Trains on a Cloud TPU slice, through preemptions, and deletes it at the end:
#
#   launch/tpu.sh run --project=P --zone=Z --type=v6e-16 --bucket=B
#     -- prm-jax train --config=FILE --workdir={workdir}
#
# This file has the options, the gcloud commands and the run's folder here;
# tpu_loop.sh the loop that keeps a run going; worker.sh what runs on a worker.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=common.sh
source "$here/common.sh"
# shellcheck source=tpu_loop.sh
source "$here/tpu_loop.sh"

usage() {
  cat <<'EOF'
launch/tpu.sh run [OPTION]... -- COMMAND...   a new run
launch/tpu.sh resume --run=RUN                watch and restart it again
launch/tpu.sh status|logs|stop --run=RUN      look at it, delete its slice

  --project=P --zone=Z   where
  --type=T               v5e-16, also written v5litepod-16 or v5e:4x4; v5p-8,
                         v6e-16 and the like
  --bucket=B             the workdir is gs://B/runs/RUN, logs go to gs://B/logs
  --workdir=DIR          or a folder that all workers have
  --run=RUN              the run's permanent name; made from the time by default
  --spot                 cheaper, and may be taken away at any time
  --wheel=FILE           of prm_jax; the newest in dist/ by default;
                         --wheel=none if the workers have prm_jax
  --extras=tpu,gcs       of the wheel
  --copy=PATH            a file or folder that COMMAND reads; it gets the same
                         relative path on the workers; may be repeated
  --setup=FILE           bash that each worker runs once before the start
  --env-file=FILE        secrets: NAME=VALUE a line, mode 0600
  --service-account=SA   that the workers act as
  --runtime-version=V    if T isn't v5litepod, v5p or v6e
  --independent          workers don't know of each other: --shard={i}/{n}
  --max-hours=H          of a ready slice, over all attempts (24); then the
                         run saves, the slice is deleted, and the code is 42
  --wait=D               how long to queue for a slice (24h)
  --retries=K            attempts in a row without a new checkpoint (5)
  --backoff=S            first wait between attempts, doubled up to 600 s (30)
  --poll=S               how often to look (60)
  --grace=S              seconds from the failure of a worker until the others
                         are stopped (180)
  --keep                 leave the slice, which costs money, at the end and on
                         Ctrl-C
  --delete               delete it on Ctrl-C without asking
  --dry-run              print the commands, run none

In COMMAND {workdir}, {i} and {n} are the workdir, the worker's number and how
many there are. status and logs take --worker=I or all.
EOF
}

project='' zone='' type='' bucket='' workdir='' spot=0 wheel=''
extras=tpu,gcs copies=() setup='' env_file='' service_account='' runtime=''
independent=0 max_hours=24 wait=24h retries=5 backoff=30 poll=60
grace=180 at_end=ask worker=all sha=SHA256

# What resume, status, logs and stop read from .launch/RUN/settings.
readonly KEPT=(
  project zone type bucket workdir spot env_file service_account runtime
  independent max_hours wait retries backoff poll grace at_end sha
)

readonly OPTIONS=(
  --project= --zone= --type= --bucket= --workdir= --run= --spot --wheel=
  --extras= --copy=:copies+ --setup= --env-file= --service-account=
  --runtime-version=:runtime --independent --max-hours= --wait= --retries=
  --backoff= --poll= --grace= --worker= --keep:at_end=keep
  --delete:at_end=delete
)

check_options() {
  need --project "$project" YOUR_PROJECT
  need --zone "$zone" us-east5-b
  need --type "$type" v6e-16
  [[ -n $bucket || -n $workdir ]] || need --bucket '' BUCKET
  check_word --project "$project"
  check_word --zone "$zone"
  bucket=${bucket#gs://}
  workdir=${workdir:-gs://$bucket/runs/$run}
  check_workdir "$workdir"
  check_word --wait "$wait"
  check_word --extras "$extras"
  check_word --service-account "${service_account:-default}"
  check_natural --max-hours "$max_hours"
  check_natural --retries "$retries"
  check_natural --backoff "$backoff"
  check_natural --grace "$grace"
  [[ $poll =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "--poll=$poll: expected seconds"
  find_runtime
  check_command "${command[@]}"
  check_env_file "$env_file"
  [[ -z $setup || -f $setup ]] || die "--setup=$setup: doesn't exist"
  check_copies
}

check_shape() {
  local sizes=() size axes=2
  IFS=x read -r -a sizes <<<"$2"
  case $1 in v4 | v5p) axes=3 ;; esac
  ((${#sizes[@]} == axes)) ||
    die "--type=$1:$2: v4 and v5p have three sizes, v5e and v6e have two"
  for size in "${sizes[@]}"; do
    (((size & (size - 1)) == 0 && size <= 2 * sizes[0] && sizes[0] <= 2 * size)) ||
      die "--type=$1:$2: types have even shapes, such as 2x4 or 2x2x4; give one"
  done
}

# cloud.google.com/tpu/docs/runtimes
find_runtime() {
  local size number=1
  if [[ $type =~ ^(v[0-9a-z]+):([1-9][0-9]*(x[1-9][0-9]*)+)$ ]]; then
    # A slice by its shape. Types count chips, of v4 and v5p cores, two to a chip,
    # and have the most even shape, where no size is over twice another.
    check_shape "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    for size in ${BASH_REMATCH[2]//x/ }; do
      number=$((number * size))
    done
    case ${BASH_REMATCH[1]} in v4 | v5p) number=$((number * 2)) ;; esac
    type=${BASH_REMATCH[1]}-$number
  fi
  type=${type/#v5e-/v5litepod-}
  [[ $type =~ ^v[0-9a-z]+-[0-9]+$ ]] ||
    die "--type=$type: expected such as v5e-16, v5e:4x4, v5p-8 or v6e-16"
  case $type in
    v5litepod-*) runtime=${runtime:-v2-alpha-tpuv5-lite} ;;
    v5p-*) runtime=${runtime:-v2-alpha-tpuv5} ;;
    v6e-*) runtime=${runtime:-v2-alpha-tpuv6e} ;;
  esac
  [[ -n $runtime ]] ||
    die "--type=$type: expected v5litepod-, v5p- or v6e-; for others" \
      "give --runtime-version"
  check_word --runtime-version "$runtime"
}

check_copies() {
  local path
  for path in "${copies[@]}"; do
    [[ $path != /* && $path != .. && $path != ../* && $path != */.. &&
      $path != */../* ]] ||
      die "--copy=$path: give a path below this folder"
    [[ -e $path ]] || die "--copy=$path: doesn't exist"
  done
}

# --- A run's folder here ----------------------------------------------------

folder() {
  printf '.launch/%s' "$run"
}

save_settings() {
  local name
  for name in "${KEPT[@]}"; do
    printf '%s=%q\n' "$name" "${!name}"
  done >"$(folder)/settings"
}

load_settings() {
  check_run
  [[ -f $(folder)/settings ]] ||
    die "--run=$run: no such run in .launch; launch/tpu.sh run starts one"
  # shellcheck source=/dev/null
  source "$(folder)/settings"
}

# Packs all that the workers get, except the secrets, into one file. It is made
# once: every attempt of a run has the same bytes on every slice.
make_bundle() {
  local stage path
  remark "bundle.tar.gz: ${wheel:-dist/prm_jax-*.whl}, worker.sh, common.sh," \
    "the command${setup:+, $setup}${copies[0]:+, ${copies[*]}}"
  if ((dry_run)); then
    return
  fi
  stage=$(mktemp -d)
  mkdir "$stage/files"
  cp "$here/common.sh" "$here/worker.sh" "$stage"
  [[ $wheel == none ]] || cp "$wheel" "$stage"
  [[ -z $setup ]] || cp "$setup" "$stage/setup"
  for path in "${copies[@]}"; do
    tar -cf - -- "$path" | tar -xf - -C "$stage/files"
  done
  printf '%s\0' "${command[@]}" >"$stage/command"
  describe_run >"$stage/settings"
  tar -czf "$(folder)/bundle.tar.gz" -C "$stage" .
  rm -r "$stage"
  sha=$(sha256_of "$(folder)/bundle.tar.gz")
}

# What worker.sh reads.
describe_run() {
  local file=''
  [[ $wheel == none ]] || file=${wheel##*/}
  printf 'workdir=%q\n' "$workdir"
  printf 'logs=%q\n' "${bucket:+gs://$bucket/logs/$run}"
  printf 'wheel=%q\n' "$file"
  printf 'extras=%q\n' "$extras"
  printf 'independent=%q\n' "$independent"
}

# --- gcloud -----------------------------------------------------------------

place() {
  where=(--project="$project" --zone="$zone")
  there=prm_jax_runs/$run
  delete_command=(
    gcloud compute tpus queued-resources delete "$run" "${where[@]}"
    --force --quiet
  )
}

# Runs a line of shell on workers $1 (a number, or all). It has no word of the
# user's but the run's checked name.
on_workers() {
  act gcloud compute tpus tpu-vm ssh "$run" "${where[@]}" --worker="$1" \
    --ssh-flag=-oServerAliveInterval=30 --quiet --command="$2" </dev/null
}

call_worker() {
  on_workers "$1" "bash $there/worker.sh $2"
}

create() {
  local more=()
  ((!spot)) || more+=(--spot)
  [[ -z $service_account ]] || more+=(--service-account="$service_account")
  act gcloud compute tpus queued-resources create "$run" --node-id="$run" \
    "${where[@]}" --accelerator-type="$type" --runtime-version="$runtime" \
    --labels=run="$run" --valid-until-duration="$wait" --quiet "${more[@]}"
}

delete_slice() {
  note "deleting $run"
  if ! act "${delete_command[@]}"; then
    note "$run could not be deleted and may cost money; try again:" \
      "$(quoted "${delete_command[@]}")"
    return 1
  fi
}

# Prints READY and the number of workers; or NONE, UNKNOWN, LOST, or the state
# of a slice that isn't ready yet.
look() {
  local state errors
  errors=$(mktemp)
  if ! state=$(gcloud compute tpus queued-resources describe "$run" \
    "${where[@]}" --format='value(state.state)' 2>"$errors"); then
    state=UNKNOWN
    if grep -q NOT_FOUND "$errors"; then
      state=NONE
    fi
  elif [[ $state == ACTIVE ]]; then
    state=$(gcloud compute tpus tpu-vm describe "$run" "${where[@]}" \
      --format='value(state,networkEndpoints.len())' 2>"$errors") ||
      state=UNKNOWN
    case $state in
      READY* | UNKNOWN) ;;
      CREATING* | STARTING* | RESTARTING* | REPAIRING* | REIMAGING*) ;;
      *) state=LOST ;;
    esac
  fi
  rm -f "$errors"
  printf '%s\n' "$state"
}

# Makes all workers unpack the bundle and print its digest.
prepare() {
  local env=${env_file:-/dev/null}
  # The file gets its mode before the secrets are in it.
  on_workers all "mkdir -p $there && install -m 600 /dev/null $there/env" ||
    return 1
  act gcloud compute tpus tpu-vm scp "$(folder)/bundle.tar.gz" \
    "$run:$there/bundle.tar.gz" "${where[@]}" --worker=all --quiet || return 1
  if [[ -n $env_file ]]; then
    act gcloud compute tpus tpu-vm scp "$env" "$run:$there/env" \
      "${where[@]}" --worker=all --quiet || return 1
  fi
  on_workers all "cd $there && echo '$sha  bundle.tar.gz' | sha256sum --check \
--quiet && tar -xzf bundle.tar.gz && bash worker.sh install"
}

# --- Commands ---------------------------------------------------------------

print_plan() {
  make_bundle
  create
  remark 'every '"$poll"' s, until it is ready:'
  quoted gcloud compute tpus queued-resources describe "$run" "${where[@]}" \
    --format='value(state.state)'
  quoted gcloud compute tpus tpu-vm describe "$run" "${where[@]}" \
    --format='value(state,networkEndpoints.len())'
  prepare
  call_worker 0 step
  remark "worker i of n runs, in $there/files:"
  fill_in '{i}' '{n}' "$workdir" "${command[@]}"
  remark "  $(quoted "${filled[@]}")"
  call_worker all start
  call_worker 0 follow
  remark "every $poll s, until all have ended:"
  call_worker all status
  remark "after exit code 42 or 127 and above, or a lost slice: start again"
  quoted "${delete_command[@]}"
}

begin_run() {
  name_run
  check_options
  place
  if ((dry_run)); then
    print_plan
    return
  fi
  [[ ! -e $(folder) ]] ||
    die "--run=$run: this run exists; resume it:" \
      "launch/tpu.sh resume --run=$run"
  [[ $wheel == none ]] || wheel=$(find_wheel "$wheel")
  check_config "${command[@]}"
  mkdir -p .launch
  mkdir "$(folder)"
  make_bundle
  save_settings
  note "run $run, workdir $workdir"
  keep_going
}

resume_run() {
  [[ -z ${command[*]}${copies[*]}$wheel$setup ]] ||
    die "resume: the run's command and files can't change; for others" \
      "start a run with the same --workdir"
  load_settings
  # Options that are given again replace those of the settings.
  read_options "${@:2}"
  check_env_file "$env_file"
  save_settings
  place
  keep_going
}

show_status() {
  load_settings
  place
  local state
  state=$(look)
  printf '%s\n' "$state"
  [[ $state != READY* ]] || call_worker "$worker" status
}

show_logs() {
  load_settings
  place
  on_workers "$worker" "tail --lines=1000 $there/run.log"
}

stop_run() {
  load_settings
  place
  if [[ $(look) == NONE ]]; then
    note "$run has no slice"
    return
  fi
  call_worker all 'stop 300' || note "some workers couldn't be told to save"
  delete_slice
}

main() {
  local what=${1-}
  case $what in
    run | resume | status | logs | stop) ;;
    '' | --help | -h) usage && exit 0 ;;
    *) die "$what: expected run, resume, status, logs or stop; see --help" ;;
  esac
  read_options "${@:2}"
  case $what in
    run) begin_run ;;
    resume) resume_run "$@" ;;
    status) show_status ;;
    logs) show_logs ;;
    stop) stop_run ;;
  esac
}

check_bash 4 4
main "$@"
