#!/bin/sh
# Runs a training to its end. After a crash, it restarts the training from its last checkpoint.
#
#   tools/run.sh --max-restarts 5 -- mpiexec -n 4 build/train_cifar --epochs 50
#   tools/run.sh --elastic hosts --min-ranks 2 -- mpiexec build/train_cifar --epochs 50 --workers 8
#
# The command is a training program or a sweep, with or without mpiexec. If it has no --run-name, this script adds one
# before the first attempt. For a restart from a checkpoint, it adds --resume, and removes --init (but not for a sweep,
# whose trials resume themselves). --max-restarts N allows N restarts; the default is 3. Before each it waits: 1 s, then 2,
# 4 ... up to 64 s.
#
# With --elastic FILE, each attempt uses the machines that answer. FILE has one machine per line, HOST or HOST:RANKS, like
# the file of mpiexec -f. A machine answers if "ssh HOST true" succeeds; localhost always does. (RG_SSH replaces "ssh -o
# BatchMode=yes -o ConnectTimeout=5".) The script inserts -f and -n after the first word of the command. If fewer ranks
# than --min-ranks N can run (default 1), it waits. While machines are missing, it asks them every minute (or RG_ASK_S
# seconds); when one answers, the training ends with a checkpoint and continues there too. With --workers, the training
# has the same bits as if all machines had been there.
#
# The exit status is that of the last attempt. The script does not restart after these:
#
#   0   done, or stopped by a person (Ctrl-C, a stop request)
#   75  interrupted by SIGTERM, SIGUSR1 or SIGHUP, which this script passes on as SIGTERM. So a training whose terminal
#       is closed ends with a checkpoint; without this script, mpiexec would kill its ranks. If such a signal comes
#       before the first attempt, the script exits with 75 and starts nothing
#   1   failed before its first step: a wrong option, no data
#   76  the ranks differ: in their options, files or versions, or in what they have computed
#
# A job of a batch system can therefore use: tools/run.sh ... || [ $? -ne 75 ] || scontrol requeue "$SLURM_JOB_ID"
set -u

usage() {
    echo "usage: run.sh [--max-restarts N] [--elastic FILE] [--min-ranks N] -- COMMAND...; $1" >&2
    exit 2
}

print_help() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; }
if [ "${1-}" = --help ]; then
    print_help
    exit 0
elif [ $# = 0 ]; then
    print_help >&2
    exit 2
fi

max_restarts=3 elastic='' min_ranks=1
while :; do
    case ${1-} in
    --max-restarts | --elastic | --min-ranks) [ $# -gt 1 ] || usage "expected a value after $1, got the end" ;;
    esac
    case ${1-} in
    --max-restarts) max_restarts=$2 ;;
    --elastic) elastic=$2 ;;
    --min-ranks) min_ranks=$2 ;;
    *) break ;;
    esac
    shift 2
done
for number in "$max_restarts" "$min_ranks"; do
    case $number in *[!0-9]* | '' | ??????????*) usage "expected a number of at most 9 digits, got \"$number\"" ;; esac
done
[ "${1-}" = -- ] || usage "expected -- before the command, got \"${1-}\""
shift
[ $# -gt 0 ] || usage "expected a command after --, got the end"

lines() { sed 's/#.*//; s/^[[:space:]]*//; s/[[:space:]]*$//; /^$/d; s/:$//; /:/!s/$/:1/' "$elastic"; }
# HOST:RANKS. ssh and mpiexec would take a host that begins with - for an option, which can run a command.
machine='[[:alnum:]_][[:alnum:]_.@-]*:[0-9]{1,6}'
machines() { lines | grep -Ex "$machine"; }
answering() { # prints those that answer
    machines | while IFS=: read -r host ranks; do
        [ "$host" = localhost ] || ${RG_SSH-ssh -o BatchMode=yes -o ConnectTimeout=5} "$host" true < /dev/null \
            > /dev/null 2>&1 || continue
        echo "$host:$ranks"
    done
}
ranks_of() { awk -F: '{ ranks += $2 } END { print ranks + 0 }'; }
if [ -n "$elastic" ]; then
    [ -r "$elastic" ] || usage "expected a file of machines, got \"$elastic\""
    wrong=$(lines | grep -Evx -m 1 "$machine") && usage "expected lines HOST or HOST:RANKS in $elastic, got \"$wrong\""
    all_ranks=$(machines | ranks_of)
    [ "$all_ranks" -ge "$min_ranks" ] || usage "expected at least $min_ranks ranks in $elastic, got $all_ranks"
    for word do
        case $word in -n | -np | -f | -hosts) usage "expected no $word with --elastic, which adds -f and -n" ;; esac
    done
    hosts=$(mktemp)
    trap 'rm -f "$hosts"' EXIT
fi

# Prints the default of --runs, by the same rule as default_runs_folder() (models/run/run_folder.h).
default_runs() {
    up=''
    while [ ! -d "${up}meson-private" ]; do
        case $(cd "./$up" 2> /dev/null && pwd -P) in
        / | '') echo runs && return ;; # the topmost folder, or one that cannot be entered
        esac
        up=../$up
    done
    echo "${up}../runs"
}

runs=$(default_runs) name='' resume='' last=''
for word do
    case $last in
    --runs) runs=$word ;;
    --run-name) name=$word ;;
    esac
    case $word in
    --runs=*) runs=${word#*=} ;;
    --run-name=*) name=${word#*=} ;;
    --resume) resume=1 ;;
    esac
    last=$word
done
if [ -z "$name" ]; then
    [ -z "$resume" ] || usage "expected --run-name with --resume, got none"
    name=run-$(date +%Y%m%d-%H%M%S)-$$
    set -- "$@" --run-name "$name"
fi
run=$runs/$name

# Another job may train a run of this name. So this script neither resumes nor deletes a run before the training has
# locked it: then its owner.json has RG_JOB, the name of this job.
export RG_JOB="${RG_JOB-run.sh-$(uname -n)-$$-$(date +%s)}"
owned() { grep -qsF "\"job\": \"$RG_JOB\"" "$run/owner.json"; }

# Prints the identity of files that an attempt replaces when it begins: config.json for a training, results.jsonl for a
# sweep. If neither has changed, the attempt failed before its first step.
began() { stat -c '%i %y' "$run/config.json" "$run/results.jsonl" 2>/dev/null; }
is_sweep() { [ -e "$run/journal.jsonl" ] || [ -d "$run/trials" ]; }
state_is() { grep -qs "\"state\": \"$1\"" "$run/report.html"; }
has_checkpoint() { [ -n "$(find "$run/" -name 'step-*.safetensors' 2>/dev/null)" ]; }

child='' stopped='' passed_on='' grown=''
end_child() {
    [ -n "$child" ] || return 0
    # Wait until exec has replaced the child's shell, since that shell would ignore the signal.
    while cmp -s "/proc/$$/cmdline" "/proc/$child/cmdline"; do sleep 0.01; done
    kill -TERM "$child" 2>/dev/null
    passed_on=1
}
trap 'stopped=interrupted; end_child' TERM USR1 HUP
trap 'grown=1; end_child' ALRM # from ask()
trap 'stopped=asked' INT # a terminal sends it to the training as well
pause() { # a signal ends it
    sleep "$1" &
    wait $!
    kill $! 2> /dev/null
}

# Waits for enough machines, and writes those that answer to $hosts. Sets $ranks.
find_machines() {
    while :; do
        answering > "$hosts"
        ranks=$(ranks_of < "$hosts")
        [ -z "$stopped" ] && [ "$ranks" -lt "$min_ranks" ] || return 0
        echo "run.sh: $ranks ranks can run; waits for $min_ranks" >&2
        pause "${RG_ASK_S-60}"
    done
}
ask() { # sends SIGALRM to this script when more ranks can run than those that do
    while sleep "${RG_ASK_S-60}"; do
        if [ "$(answering | ranks_of)" -gt "$ranks" ]; then kill -ALRM $$ && return; fi
    done
}
start() { # runs the command, with the machines that answer
    if [ -n "$elastic" ]; then
        launcher=$1
        shift
        set -- "$launcher" -f "$hosts" -n "$ranks" "$@"
    fi
    exec "$@"
}

restarts=0 code=75
while :; do
    before=$(began)
    [ -z "$elastic" ] || find_machines
    [ -z "$stopped" ] || exit "$code"
    grown='' passed_on='' asking=''
    (trap '' HUP; start "$@") & # without HUP: end_child sends TERM, which mpiexec passes on
    child=$!
    if [ -n "$elastic" ] && [ "$ranks" -lt "$all_ranks" ]; then
        ask < /dev/null > /dev/null 2>&1 & # its sleep may outlive this script
        asking=$!
    fi
    [ "$stopped" != interrupted ] || [ -n "$passed_on" ] || end_child # the signal came before $child was known
    wait "$child"
    code=$?
    while kill -0 "$child" 2>/dev/null; do # a signal ended the wait, but not the training
        wait "$child"
        code=$?
    done
    child=''
    [ -z "$asking" ] || kill "$asking" 2>/dev/null
    # MPICH's mpiexec loses exit codes when it passes on a signal or when its terminal is closed, so read the state of
    # the run from its report. A run that was stopped during loading has no report;
    # nor has one with --no-report, which counts as stopped then.
    if [ "$stopped" = interrupted ] || [ -n "$grown" ]; then
        # 143 means that SIGTERM came before the command could handle it.
        if state_is stopped || [ "$code" -eq 143 ] || { [ "$code" -eq 0 ] && ! state_is 'done'; }; then code=75; fi
    fi
    if [ "$code" = 75 ] && [ -n "$grown" ] && [ -z "$stopped" ]; then
        why="more ranks can run" seconds=1
    else
        case $code in
        0 | 75) exit "$code" ;;
        76)
            echo "run.sh: exit status 76, without a restart, since the ranks differ; $run" >&2
            exit "$code"
            ;;
        esac
        [ -z "$stopped" ] || exit "$code"
        if [ "$code" -eq 1 ] && { ! owned || [ "$(began)" = "$before" ]; }; then exit "$code"; fi
        if [ "$restarts" -ge "$max_restarts" ]; then
            echo "run.sh: exit status $code, after $restarts restarts; $run" >&2
            exit "$code"
        fi
        restarts=$((restarts + 1))
        why="exit status $code; restart $restarts of $max_restarts"
        seconds=$((restarts > 6 ? 64 : 1 << (restarts - 1)))
    fi
    if [ -z "$resume" ] && ! owned; then
        from="from its beginning" # it ended before it had a folder
    elif is_sweep; then
        [ -n "$resume" ] || set -- "$@" --resume
        resume=1 from="with what had not ended"
    elif has_checkpoint; then
        last=''
        for word do # keep all words except --resume, and --init with its value
            shift
            case $word in
            --init | --init=* | --resume) ;;
            *) [ "$last" = --init ] || set -- "$@" "$word" ;;
            esac
            last=$word
        done
        set -- "$@" --resume
        resume=1 from="from its last checkpoint"
    else
        [ -n "$resume" ] || rm -rf "$run"
        from="from its beginning"
    fi
    echo "run.sh: $why, $from; $run" >&2
    pause "$seconds" # remaining processes may still be ending
    code=75 # if a signal came meanwhile
done
