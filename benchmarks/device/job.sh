#!/usr/bin/env bash
# What to measure first when a GPU is at hand for a quarter of an hour, each job
# in 8 minutes at most, updates in 9 (docs/accelerators.md):
#
#   benchmarks/device/job.sh updates OUT     1.5B whole, 7B by adapters and whole:
#                                            share of the matmul, memory against
#                                            plan, trees over rows
#   benchmarks/device/job.sh rollouts OUT    tokens a second against bandwidth
#   benchmarks/device/job.sh peers OUT       the same by torch and transformers
#   benchmarks/device/job.sh kernels OUT     Tokamax's attention: is it right; ours,
#                                            Tokamax's and cuDNN's: how fast
#
# Results are in OUT/JOB.json as they come, and the same command runs what is
# missing. Further options, such as --quick on a CPU, go to check-device. Each
# update is a call of its own: it begins with all of the memory.
set -euo pipefail

(($# >= 2)) || {
  sed -n '2,17s/^# \{0,1\}//p' "$0" >&2
  exit 1
}
mkdir -p "$2"
job=$1 out=$(cd "$2" && pwd)
shift 2
cd "$(dirname "$0")/../.."
case $job in
  updates) calls=(speed.update.1_5b speed.update.7b_lora speed.update.7b) ;;
  rollouts) calls=(speed.rollouts) ;;
  peers) calls=(peers) ;;
  kernels) calls=(attention.tokamax speed.attention) ;;
  *)
    echo "$0: $job: expected updates, rollouts, peers or kernels" >&2
    exit 1
    ;;
esac
for word in "$@"; do
  # The small shapes have other names.
  [[ $word == --quick && $job == updates ]] && calls=(speed.update)
done

# One for all commands: most of the time is compiling.
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-/tmp/prm_jax_compiled}
minutes=$((8 / ${#calls[@]}))
((minutes > 2)) || minutes=3 # an update begins with two left
failed=0
for call in "${calls[@]}"; do
  python -m prm_jax check-device --only="$call" --minutes="$minutes" \
    --output="$out/$job.json" "$@" || failed=1
done
exit "$failed"
