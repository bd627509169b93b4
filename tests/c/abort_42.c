/* Tells rankrun that its rank gives up with 42, and ends at once: nobody can look it up any more. */
#include "rankrun.h"

int main(void)
{
    rankrun_abort(42, "given up");
}
