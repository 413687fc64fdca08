#!/usr/bin/env bash
# Ends the processes of a launcher that was killed:
#
#   exec {alive}> >(exec end_orphans.sh SECONDS)
#
# The launcher writes a process's number when it starts one, and the number with
# a minus when that has ended, and T when it has sent them SIGTERM itself. When
# the launcher is gone, however it ended, this script reads the end of its input.
# Then it sends SIGTERM to those that are left, and after SECONDS SIGKILL. It
# sends no second SIGTERM, which would end a process that is saving.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
# shellcheck source=common.sh
source "$here/common.sh"

# Whether a process runs. One that has ended may still be in the table, until
# process 1 takes it out, which in a container may never happen.
is_running() {
  kill -0 "$1" 2>/dev/null || return 1
  [[ ! -r /proc/$1/stat || ! $(<"/proc/$1/stat") =~ \)\ Z\  ]] 2>/dev/null
}

# Ctrl-C reaches all processes of a terminal; this one must outlive them.
trap '' INT TERM HUP
left=() terminated=
while IFS= read -r pid; do
  if [[ $pid == T ]]; then
    terminated=1
  elif [[ $pid == -* ]]; then
    unset "left[${pid#-}]"
  else
    left[pid]=$pid
  fi
done
((${#left[@]})) || exit 0
note "the launcher is gone; ending process ${left[*]}"
[[ -n $terminated ]] || kill -TERM "${left[@]}" 2>/dev/null || true
for ((tenth = 0; tenth < $1 * 10; tenth++)); do
  for pid in "${left[@]}"; do
    is_running "$pid" || unset "left[$pid]"
  done
  ((${#left[@]})) || exit 0
  sleep 0.1
done
note "killing process ${left[*]}, $1 s after SIGTERM"
kill -KILL "${left[@]}" 2>/dev/null || true
