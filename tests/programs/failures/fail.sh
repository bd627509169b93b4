# A rank that is a shell. `fail.sh FATE RANK`: that rank meets the fate when all are up, the others wait.

touch "$RANKRUN_TEST_DIR/$RANKRUN_RANK.up"
rank=0
while [ "$rank" -lt "$RANKRUN_WORLD_SIZE" ]; do
    [ -e "$RANKRUN_TEST_DIR/$rank.up" ] && rank=$((rank + 1)) || sleep 0.01
done

if [ "$RANKRUN_RANK" = "$2" ]; then
    case $1 in
        exit-code) exit 3 ;;
        sigsegv) kill -SEGV $$ ;;
        sigkill) kill -KILL $$ ;;
        sigabrt) kill -ABRT $$ ;;
        sigstop) sh -c 'kill -STOP $PPID' ;;
        not-found) exec rankrun-no-such-command ;;
        child-sigsegv)
            sh -c 'kill -SEGV $$'
            exit "$?"
            ;;
        out-of-memory)
            kept=x
            while :; do kept=$kept$kept; done
            ;;
    esac
fi
while :; do sleep 1; done
