# bash completion of rankrun: options and their values, programs, and then what the program itself completes.

# The programs that the word may begin: on the PATH, or below a directory.
_rankrun_programs() {
    local name
    if [[ $1 == */* || $1 == '~'* ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r name; do
            [[ -d $name || -x $name ]] && COMPREPLY+=("$name")
        done < <(compgen -f -- "$1")
        return
    fi
    # bash lists what it knows itself too: functions, keywords.
    while IFS= read -r name; do
        type -P -- "$name" >/dev/null && COMPREPLY+=("$name")
    done < <(compgen -c -- "$1")
    while IFS= read -r name; do
        COMPREPLY+=("$name/")
    done < <(compgen -d -- "$1")
}

_rankrun_words() {
    local word=$1
    shift
    while IFS= read -r name; do
        COMPREPLY+=("$name")
    done < <(compgen -W "$*" -- "$word")
}

# The running jobs of this user.
_rankrun_jobs() {
    command rankrun status 2>/dev/null | sed -n 's/^\([0-9a-f]\{8\}\) .*/\1/p'
}

# The values of an option.
_rankrun_values() {
    local option=$1 word=$2 name
    compopt +o default +o bashdefault 2>/dev/null
    case $option in
@values@
    esac
}

_rankrun_filenames() {
    local name
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do
        COMPREPLY+=("$name")
    done < <(compgen "$1" -- "$2")
}

_rankrun_subcommand() {
    local word=$2
    compopt +o default +o bashdefault 2>/dev/null
    case $1 in
@subcommands@
    esac
}

_rankrun() {
    COMPREPLY=()
    local line=${COMP_LINE:0:COMP_POINT} word blanks i
    local -a words=() raw=()
    # bash has cut the words at "=" and ":" too: what no blank separates is put together again.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        blanks=${line%%[![:space:]]*}
        line=${line:${#blanks}}
        word=${line:0:${#word}}
        line=${line:${#word}}
        if ((i > 0)) && [[ -z $blanks && ${#words[@]} -gt 0 ]]; then
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
            raw+=("$i")
        fi
    done
    local last=$((${#words[@]} - 1))
    local word=${words[last]} at=1 option=''
    if ((last > 1)) && [[ " @words@ help " == *" ${words[1]} "* ]]; then
        _rankrun_subcommand "${words[1]}" "$word"
        return
    fi
    # After a ":" the next command begins.
    for ((i = 1; i < last; i++)); do
        [[ ${words[i]} == : ]] && at=$((i + 1))
    done
    local first=$at
    while ((at < last)); do
        case ${words[at]} in
            --) at=$((at + 1)); break ;;
            --*=*) ;;
            @valued@)
                ((at + 1 == last)) && option=${words[at]}
                at=$((at + 1))
                ;;
            -*) ;;
            *) break ;;
        esac
        at=$((at + 1))
    done
    if [[ -n $option ]]; then
        _rankrun_values "$option" "$word"
    elif ((at < last)); then
        # The command has begun: whoever completes it goes on. Without bash-completion these are files.
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "${raw[at]}"
        elif declare -F _command_offset >/dev/null; then
            _command_offset "${raw[at]}"
        fi
    elif [[ $word == --*=* ]]; then
        _rankrun_values "${word%%=*}" "${word#*=}"
        if [[ $COMP_WORDBREAKS != *=* ]]; then
            COMPREPLY=("${COMPREPLY[@]/#/${word%%=*}=}")
        fi
    elif [[ $word == -* ]]; then
        _rankrun_words "$word" "@options@"
    else
        if ((last == 1)); then
            _rankrun_words "$word" "@names@ help"
        fi
        _rankrun_programs "$word"
    fi
}

complete -o default -o bashdefault -F _rankrun rankrun
