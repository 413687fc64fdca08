#!/usr/bin/env bash
# Runs a command on a TPU slice of a GKE cluster, as a JobSet that restarts:
#
#   launch/gke.sh run --image=IMAGE --accelerator=v6e --topology=4x4
#     --claim=NAME -- prm-jax train --config=FILE --workdir={workdir}
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=common.sh
source "$here/common.sh"

usage() {
  cat <<'EOF'
launch/gke.sh run [OPTION]... -- COMMAND...   write a manifest, apply it
launch/gke.sh xpk [OPTION]... -- COMMAND...   print the line for xpk instead
launch/gke.sh status|logs|stop --run=RUN
  --image=IMAGE         has prm_jax and what COMMAND reads
  --accelerator=A       v5e, v5p or v6e; v5e:4x4 gives --topology, too
  --topology=T          of one slice: 4x4, 2x2x4
  --bucket=B            the workdir is gs://B/runs/RUN
  --claim=NAME          or /runs/RUN of this ReadWriteMany volume claim
  --run=RUN             the run's permanent name; made from the time by default
  --namespace=N         (default)
  --spot                nodes that may be taken away
  --shards=N            or N jobs of one node that don't know of each other,
                        for --shard={i}/{n}
  --env-file=FILE       secrets: NAME=VALUE a line, mode 0600
  --service-account=SA  Kubernetes service account of the pods
  --max-restarts=K      (50)
  --max-hours=H         of one attempt, waiting for nodes included (24)
  --cluster=C --project=P --zone=Z   for xpk
  --dry-run             print the manifest and the commands
In COMMAND {workdir}, {i} and {n} are the workdir, the number of the process (of
the shard) and how many there are.
EOF
}

image='' accelerator='' topology='' bucket='' claim='' namespace=default
spot=0 shards='' env_file='' service_account='' max_restarts=50 max_hours=24
cluster='' project='' zone='' workdir='' chips=0 nodes=0

# Exit codes that a restart doesn't fix.
readonly FINAL='[1, 2, 3, 4, 5, 6]'
readonly PORT=8482
readonly COMPLETION=batch.kubernetes.io/job-completion-index

readonly OPTIONS=(
  --run= --image= --accelerator= --topology= --bucket= --claim= --namespace=
  --spot --shards= --env-file= --service-account= --max-restarts= --max-hours=
  --cluster= --project= --zone=
)

check_options() {
  need --image "$image" REGISTRY/IMAGE
  check_word --image "$image"
  check_word --namespace "$namespace"
  check_word --service-account "${service_account:-default}"
  check_natural --max-restarts "$max_restarts"
  check_natural --max-hours "$max_hours"
  [[ -n $bucket || -n $claim ]] || need --bucket '' BUCKET
  workdir=gs://${bucket#gs://}/runs/$run
  if [[ -n $claim ]]; then
    check_word --claim "$claim"
    workdir=/runs/$run
  fi
  check_workdir "$workdir"
  measure_slice
  if [[ -n $shards ]]; then
    check_natural --shards "$shards"
    ((shards > 0)) || die "--shards=0: give 1 or more"
    ((nodes == 1)) ||
      die "--topology=$topology: has $nodes nodes; a shard takes one of 1 node"
  fi
  check_env_file "$env_file"
  check_command "${command[@]}"
}

# Sets `pool`, `chips` of a node and `nodes` of a slice. A slice of v5e or v6e
# with up to 8 chips is one node; all larger ones, and all of v5p, have four to
# a node (cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus).
measure_slice() {
  local sizes size
  if [[ $accelerator == *:* ]]; then
    [[ -z $topology ]] ||
      die "--topology=$topology: --accelerator=$accelerator says it already"
    topology=${accelerator#*:} accelerator=${accelerator%%:*}
  fi
  case $accelerator in
    v5e) pool=tpu-v5-lite-podslice ;;
    v5p) pool=tpu-v5p-slice ;;
    v6e) pool=tpu-v6e-slice ;;
    *) die "--accelerator=$accelerator: expected v5e, v5p or v6e" ;;
  esac
  [[ $topology =~ ^[1-9][0-9]?x[1-9][0-9]?(x[1-9][0-9]?)?$ ]] ||
    die "--topology=$topology: expected such as 4x4, or 2x2x4 of v5p"
  chips=1
  IFS=x read -r -a sizes <<<"$topology"
  [[ $accelerator == v5p && ${#sizes[@]} == 3 ||
    $accelerator != v5p && ${#sizes[@]} == 2 ]] ||
    die "--topology=$topology: v5p has three sizes, v5e and v6e have two"
  for size in "${sizes[@]}"; do
    chips=$((chips * size))
  done
  nodes=1
  if [[ $accelerator == v5p ]] || ((chips > 8)); then
    ((chips % 4 == 0)) || die "--topology=$topology: isn't made of nodes of 4"
    nodes=$((chips / 4)) chips=4
  fi
}

# --- The manifest -----------------------------------------------------------

# Prints a string as JSON, which is YAML too.
text() {
  local s=$1
  s=${s//\\/\\\\}
  s=${s//\"/\\\"}
  s=${s//$'\n'/\\n}
  s=${s//$'\t'/\\t}
  s=${s//$'\r'/\\r}
  printf '"%s"' "$s"
}

write_manifest() {
  if [[ -n $shards ]]; then
    write_job
  else
    write_jobset
  fi
}

write_jobset() {
  cat <<EOF
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $run
  namespace: $namespace
  labels: {run: $run}
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: $max_restarts
    rules:
    - name: final
      action: FailJobSet
      onJobFailureReasons: [PodFailurePolicy, DeadlineExceeded]
  replicatedJobs:
  - name: workers
    replicas: 1
    template:
      spec:
        completionMode: Indexed
        parallelism: $nodes
        completions: $nodes
        backoffLimit: 0
        activeDeadlineSeconds: $((max_hours * 3600))
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes: {containerName: main, operator: In, values: $FINAL}
        template:
EOF
  write_pod "$nodes" | sed 's/^/          /'
}

# Shards fail and restart one by one.
write_job() {
  cat <<EOF
apiVersion: batch/v1
kind: Job
metadata:
  name: $run
  namespace: $namespace
  labels: {run: $run}
spec:
  completionMode: Indexed
  parallelism: $shards
  completions: $shards
  backoffLimitPerIndex: $max_restarts
  activeDeadlineSeconds: $((max_hours * 3600))
  podFailurePolicy:
    rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget}]
    - action: FailIndex
      onExitCodes: {containerName: main, operator: In, values: $FINAL}
  template:
EOF
  write_pod "$shards" | sed 's/^/    /'
}

write_pod() {
  local n=$1 word
  cat <<EOF
metadata:
  labels: {run: $run}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 300
EOF
  [[ -z $service_account ]] || printf '  serviceAccountName: %s\n' \
    "$service_account"
  cat <<EOF
  nodeSelector:
    cloud.google.com/gke-tpu-accelerator: $pool
    cloud.google.com/gke-tpu-topology: $topology
EOF
  ((!spot)) || printf '    cloud.google.com/gke-spot: "true"\n'
  cat <<EOF
  tolerations:
  - {key: google.com/tpu, operator: Exists}
EOF
  ((!spot)) ||
    printf '  - {key: cloud.google.com/gke-spot, operator: Exists}\n'
  cat <<EOF
  containers:
  - name: main
    image: $(text "$image")
    command:
EOF
  # shellcheck disable=SC2016 # Kubernetes expands it
  fill_in '$(WORKER)' "$n" "$workdir" "${escaped[@]}"
  for word in "${filled[@]}"; do
    printf '    - %s\n' "$(text "$word")"
  done
  cat <<EOF
    env:
    - name: WORKER
      valueFrom: {fieldRef: {fieldPath: "metadata.annotations['$COMPLETION']"}}
EOF
  [[ -n $shards ]] || cat <<EOF
    - {name: JAX_COORDINATOR_ADDRESS, value: "$run-workers-0-0.$run:$PORT"}
    - {name: JAX_NUM_PROCESSES, value: "$n"}
    - {name: JAX_PROCESS_ID, value: "\$(WORKER)"}
EOF
  cat <<EOF
    - {name: TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS, value: "60"}
    - {name: TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES, value: "1024"}
EOF
  [[ -z $env_file ]] ||
    printf '    envFrom:\n    - secretRef: {name: %s-env}\n' "$run"
  cat <<EOF
    ports:
    - containerPort: $PORT
    resources:
      limits: {google.com/tpu: $chips}
    volumeMounts:
    - {name: shm, mountPath: /dev/shm}
EOF
  [[ -z $claim ]] || printf '    - {name: runs, mountPath: /runs}\n'
  cat <<EOF
  volumes:
  - {name: shm, emptyDir: {medium: Memory}}
EOF
  [[ -z $claim ]] ||
    printf '  - {name: runs, persistentVolumeClaim: {claimName: %s}}\n' "$claim"
}

# Sets `escaped` to the command with $$( for each $(: Kubernetes would take $(X)
# for a variable, and reads $$( as $(.
escape_command() {
  # shellcheck disable=SC2016 # of Kubernetes
  local word open='$('
  escaped=()
  for word in "${command[@]}"; do
    escaped+=("${word//"$open"/"\$$open"}")
  done
}

# --- Commands ---------------------------------------------------------------

begin_run() {
  local manifest
  name_run
  check_options
  escape_command
  manifest=.launch/$run/manifest.yaml
  if ((dry_run)); then
    remark "$manifest:"
    write_manifest
  else
    [[ ! -e .launch/$run ]] || die "--run=$run: this run exists; give" \
      "another name, or apply it again: kubectl apply --filename=$manifest"
    check_config "${command[@]}"
    mkdir -p ".launch/$run"
    write_manifest >"$manifest"
  fi
  if [[ -n $env_file ]]; then
    act kubectl create secret generic "$run-env" --namespace="$namespace" \
      --from-env-file="$env_file"
  fi
  act kubectl apply --filename="$manifest"
  note "to stop it: launch/gke.sh stop --run=$run --namespace=$namespace"
}

# Prints a line for xpk 1.16, whose wrapper passes on signals and exit codes.
print_xpk() {
  local secrets=()
  name_run
  check_options
  need --cluster "$cluster" CLUSTER
  [[ -z $shards ]] || die "xpk: takes no --shards; use run"
  [[ -z $claim ]] || die "xpk: takes no --claim; give --bucket"
  [[ -z $env_file ]] || secrets+=(--env-file="$env_file")
  # xpk names a slice by its number of chips; one of v5p by that of its cores.
  local type
  case $accelerator in
    v5e) type=v5litepod-$((chips * nodes)) ;;
    v5p) type=v5p-$((chips * nodes * 2)) ;;
    *) type=v6e-$((chips * nodes)) ;;
  esac
  fill_in '{i}' "$nodes" "$workdir" "${command[@]}"
  quoted xpk workload create --cluster="$cluster" --workload="$run" \
    ${project:+--project="$project"} ${zone:+--zone="$zone"} \
    --tpu-type="$type" --num-slices=1 --docker-image="$image" \
    --max-restarts="$max_restarts" --restart-on-exit-codes=42 \
    --termination-grace-period-seconds=300 "${secrets[@]}" \
    --command="$(quoted "${filled[@]}")"
}

stop_run() {
  local kinds=(job)
  if kubectl get crd jobsets.jobset.x-k8s.io >/dev/null 2>&1; then
    kinds=(jobset job)
  fi
  local kind
  for kind in "${kinds[@]}"; do
    act kubectl delete "$kind" "$run" --namespace="$namespace" \
      --ignore-not-found
  done
  act kubectl delete secret "$run-env" --namespace="$namespace" \
    --ignore-not-found
}

main() {
  local what=${1-}
  read_options "${@:2}"
  case $what in
    run) begin_run && return ;;
    xpk) print_xpk && return ;;
    status | logs | stop) check_run ;;
    '' | --help | -h) usage && return ;;
    *) die "$what: expected run, xpk, status, logs or stop; see --help" ;;
  esac
  case $what in
    status) act kubectl get jobs,pods --namespace="$namespace" \
      --selector=run="$run" ;;
    logs) act kubectl logs --namespace="$namespace" --selector=run="$run" \
      --prefix --tail=1000 ;;
    stop) stop_run ;;
  esac
}

check_bash 4 4
main "$@"
