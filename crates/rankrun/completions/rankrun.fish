# fish completion of rankrun: options and their values, programs, and then what the program itself completes.

# The words before the cursor that belong to the command at hand: those after the last ":".
function __rankrun_words
    set -l tokens (commandline -opc)
    set -e tokens[1]
    while set -l at (contains -i -- : $tokens)
        set tokens $tokens[(math $at + 1)..-1]
    end
    string join \n -- $tokens
end

# The command and its words before the cursor, without the options before it.
function __rankrun_command
    set -l tokens (__rankrun_words)
    while set -q tokens[1]
        switch $tokens[1]
            case --
                set -e tokens[1]
                break
            case '--*=*'
                set -e tokens[1]
            case @valued@
                set -e tokens[1]
                set -q tokens[1]; and set -e tokens[1]
            case '-*'
                set -e tokens[1]
            case '*'
                break
        end
    end
    string join \n -- $tokens
end

function __rankrun_at_options
    test -z "$(__rankrun_command)"
end

function __rankrun_is_first
    test (count (commandline -opc)) -eq 1
end

function __rankrun_in_subcommand
    set -l tokens (commandline -opc)
    test (count $tokens) -gt 1; and contains -- $tokens[2] $argv
end

function __rankrun_in_command
    not __rankrun_at_options; and not __rankrun_in_subcommand @words@ help
end

function __rankrun_programs
    set -l token (commandline -ct)
    if string match -q -- '*/*' $token
        complete -C $token
        return
    end
    for directory in $PATH
        set -l files $directory/$token*
        string replace -r '^.*/' '' -- $files
    end
    __fish_complete_directories $token
end

function __rankrun_rest
    complete -C (string join ' ' -- (string escape -- (__rankrun_command)) (commandline -ct))
end

# The running jobs of this user.
function __rankrun_jobs
    command rankrun status 2>/dev/null | string match -rg '^([0-9a-f]{8}) '
end

complete -c rankrun -f
complete -c rankrun -n __rankrun_at_options -f -k -a '(__rankrun_programs)'
complete -c rankrun -n __rankrun_in_command -f -k -a '(__rankrun_rest)'
@subcommands@
@options@
