# shellcheck shell=bash
# What the launch scripts share; sourced, not run. The manual: docs/launch.md.
#
# Exit codes of a run: 0 done; 1 the user's error; 3 no usable checkpoint;
# 4 disk full; 5 updates skipped in a row; 6 nobody reads the result; 42 restart
# me; 128 + n killed by signal n.

# Variables that these functions and the scripts share.
# shellcheck disable=SC2034
run='' dry_run=0 command=() filled=() code=0 signalled=0

note() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
}

die() {
  note "$@"
  exit 1
}

# check_bash MAJOR MINOR
check_bash() {
  ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= $1 * 100 + $2)) ||
    die "bash $BASH_VERSION is too old; install $1.$2 or newer"
}

# Sets a script's variables from the words of its command line, and `command`
# to those after --. The script declares its options in OPTIONS:
#
#   --max-hours=                  takes a value, which max_hours gets
#   --runtime-version=:runtime    takes a value, which runtime gets
#   --copy=:copies+               takes a value, which is added to copies
#   --spot                        a switch: spot becomes 1
#   --keep:at_end=keep            a switch: at_end becomes keep
#
# Of equal options the last one holds. --dry-run and --help need no declaration.
read_options() {
  local word
  while (($#)); do
    word=$1
    shift
    case $word in
      --help | -h) usage && exit 0 ;;
      --) command=("$@") && return ;;
      *=*) set_option "${word%%=*}=" "${word#*=}" ;;
      *) set_option "$word" 1 ;;
    esac || die "$word: not an option; see --help"
  done
}

# Sets the variable of an option; fails if the script doesn't declare it.
set_option() {
  local option target
  for option in "${OPTIONS[@]}" --dry-run; do
    [[ ${option%%:*} == "$1" ]] || continue
    target=${option#--}
    if [[ $option == *:* ]]; then
      target=${option#*:}
    else
      target=${target%=}
      target=${target//-/_}
    fi
    case $target in
      *+) local -n list=${target%+} && list+=("$2") ;;
      *=*) printf -v "${target%%=*}" %s "${target#*=}" ;;
      *) printf -v "$target" %s "$2" ;;
    esac
    return
  done
  return 1
}

# Prints words as a shell reads them back, on one line.
quoted() {
  local word flag line=''
  for word; do
    flag=''
    if [[ $word =~ ^(--[A-Za-z0-9_.-]+=)(.*)$ ]]; then
      flag=${BASH_REMATCH[1]} word=${BASH_REMATCH[2]}
    fi
    if [[ ! $word =~ ^[A-Za-z0-9_./:=@%+,-]+$ && $flag$word != *= ]]; then
      word=${word@Q}
    fi
    line+="${line:+ }$flag$word"
  done
  printf '%s\n' "$line"
}

# Runs a command that changes something; a dry run prints it instead.
act() {
  if ((dry_run)); then
    quoted "$@"
  else
    "$@"
  fi
}

# Prints a comment in a dry run, about what no printed command does.
remark() {
  if ((dry_run)); then
    printf '# %s\n' "$*"
  fi
}

# Whether the same command, after this exit code, is to resume from its last
# checkpoint.
restarts() {
  (($1 == 42 || $1 >= 127))
}

# Prints the largest of some exit codes: the order is killed, restart me, what a
# restart doesn't fix, done.
worst() {
  local each largest=0
  for each; do
    ((each <= largest)) || largest=$each
  done
  printf '%s\n' "$largest"
}

# Waits for a child, through signals that a trap counts in `signalled`, and
# sets `code` to its exit code.
wait_for() {
  local again
  code=0
  wait "$1" || code=$?
  while ((signalled)) || kill -0 "$1" 2>/dev/null; do
    signalled=0
    again=0
    wait "$1" || again=$?
    # 127: the first wait has already returned its code.
    ((again == 127)) || code=$again
  done
}

# Waits for processes to end, for $1 tenths of a second at most.
await_end() {
  local tenth
  for ((tenth = 0; tenth < $1; tenth++)); do
    kill -0 "${@:2}" 2>/dev/null || break
    sleep 0.1
  done
}

# Sleeps; a trap runs at once and not after the sleep.
pause() {
  sleep "$1" &
  wait "$!" || true
}

# Sets `filled` to a command with {i}, {n} and {workdir} filled in.
fill_in() {
  local i=$1 n=$2 workdir=$3 word
  shift 3
  filled=()
  for word; do
    word=${word//'{i}'/"$i"}
    word=${word//'{n}'/"$n"}
    filled+=("${word//'{workdir}'/"$workdir"}")
  done
}

# Prints the last step that a workdir has a whole checkpoint of; -1: none.
latest_step() {
  local path latest=-1
  while IFS= read -r path; do
    path=${path%/commit_success.txt}
    path=${path%/}
    path=${path##*/}
    [[ $path =~ ^[0-9]{1,15}$ ]] || continue
    ((10#$path <= latest)) || latest=$((10#$path))
  done < <(list_steps "$1")
  printf '%s\n' "$latest"
}

# On a disk a step's folder is renamed when it is whole; a bucket can't rename,
# so a file marks a whole step.
list_steps() {
  if [[ $1 == gs://* ]]; then
    gcloud storage ls "$1/checkpoints/*/commit_success.txt" 2>/dev/null
  else
    printf '%s\n' "$1"/checkpoints/*/
  fi
}

# Refuses a file of secrets that others may read or that isn't NAME=VALUE.
check_env_file() {
  local mode
  [[ -n $1 ]] || return 0
  [[ -f $1 ]] || die "--env-file=$1: doesn't exist; give a file of NAME=VALUE"
  mode=$(stat -c %a -- "$1" 2>/dev/null || stat -f %Lp -- "$1")
  [[ $mode == *00 ]] ||
    die "--env-file=$1: others may read it (mode $mode); chmod 600 $1"
  read_env_file "$1"
}

# Sets `pairs` to the NAME=VALUE lines of a file of secrets; sets no variable of
# that name.
read_env_file() {
  local LC_ALL=C line name number=0
  local -A lines=()
  pairs=()
  [[ -r $1 ]] || die "$1: can't be read"
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    [[ ! $line =~ ^(#.*|[[:space:]]*)$ ]] || continue
    # The line itself may be a secret, so it isn't shown.
    [[ $line =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] ||
      die "$1:$number: expected NAME=VALUE, unquoted, without export"
    [[ $line != *$'\r' ]] ||
      die "$1:$number: ends in a carriage return; save it with Unix line ends"
    name=${line%%=*}
    case $name in
      BASH_ENV) ;;
      BASH* | DIRSTACK | EPOCHREALTIME | EPOCHSECONDS | EUID | \
        FUNCNAME | GROUPS | HISTCMD | LINENO | OPTIND | PIPESTATUS | PPID | \
        RANDOM | SECONDS | SHELLOPTS | SHLVL | SRANDOM | UID | _)
        die "$1:$number: $name is a variable that bash changes; take it out" ;;
    esac
    [[ -z ${lines[$name]-} ]] ||
      die "$1:$number: $name is set in line ${lines[$name]}, too; give it once"
    lines[$name]=$number
    pairs+=("$line")
  done <"$1"
}

# Prints the value of the variable $2, in the file of secrets $1 or, if it isn't
# there, in the environment.
value_with() {
  local pair pairs=() value=${!2-}
  [[ -z $1 ]] || read_env_file "$1"
  for pair in "${pairs[@]}"; do
    [[ $pair != "$2="* ]] || value=${pair#*=}
  done
  printf '%s\n' "$value"
}

# Becomes the command $2..., with the variables of the file of secrets $1 in its
# environment. A new bash sets them, because a name in the file may be that of a
# variable of this one.
exec_with() {
  [[ -n $1 ]] || exec "${@:2}"
  exec "$BASH" -c "$(declare -f note die read_env_file become)"'
    become "$@"' "$0" "$@"
}

# What the new bash does. When it sets the variables it has no others, only
# positional parameters.
become() {
  read_env_file "$1"
  set -- "$(($# - 1))" "${@:2}" "${pairs[@]}"
  unset pairs
  (($# == $1 + 1)) || export "${@:$1 + 2}"
  exec "${@:2:$1}"
}

# Refuses a name that queued resources, labels, JobSets or folders don't take. A
# JobSet's pod name, which adds two numbers, must fit into 63 characters.
check_run() {
  need --run "$run" NAME
  [[ $run =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
    die "--run=$run: give 1 to 40 of a-z, 0-9 and -, a letter first, no - last"
}

# Gives a new run its name.
name_run() {
  run=${run:-prm-$(date -u +%Y%m%d-%H%M%S)}
  check_run
}

check_natural() {
  [[ $2 =~ ^[0-9]{1,9}$ ]] || die "$1=$2: expected 0, 1, 2, ..."
}

# Refuses a value that isn't one word of harmless characters.
check_word() {
  [[ $2 =~ ^[A-Za-z0-9_./:@=+,-]+$ ]] ||
    die "$1=$2: expected letters, digits and any of _./:@=+,-"
}

need() {
  [[ -n $2 ]] || die "$1 is missing; give $1=$3"
}

check_workdir() {
  [[ $1 == gs://?*/?* || $1 == /?* ]] ||
    die "--workdir=$1: workers share it: give gs://BUCKET/FOLDER or the" \
      "absolute path of a folder that all have"
}

check_command() {
  (($# > 0)) ||
    die "no command; end with -- prm-jax train --config=FILE" \
      "--workdir={workdir}"
}

# Checks the config of a training command here, before machines cost money.
check_config() {
  if [[ $1 == prm-jax && ${2-} == train ]] && command -v prm-jax >/dev/null
  then
    "$@" --help >/dev/null || die "the command was refused; see the line above"
  fi
}

# Prints the wheel of prm_jax: the given one, or the newest in dist/.
find_wheel() {
  local path wheel=$1
  if [[ -z $wheel ]]; then
    for path in dist/prm_jax-*.whl; do
      [[ ! -f $path || -n $wheel && $path -ot $wheel ]] || wheel=$path
    done
  fi
  [[ -f $wheel ]] ||
    die "--wheel=${wheel:-dist/prm_jax-*.whl}: doesn't exist; build it:" \
      "pip wheel --no-deps --wheel-dir=dist ."
  printf '%s\n' "$wheel"
}

sha256_of() {
  if command -v sha256sum >/dev/null; then
    sha256sum <"$1"
  else
    shasum -a 256 <"$1"
  fi | cut -c 1-64
}
