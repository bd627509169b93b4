//! What the ends of a rank's output say of its end, by what is known of it.

use crate::causes::is_plain_exit;
use crate::evidence::{Fact, Source};
use crate::gang::Gang;
use crate::ids::Rank;
use crate::recognisers::End;
use crate::stderr::{Tail, Tails, Words};

/// What the ends of the output of a rank that has ended say.
pub(crate) fn words(gang: &Gang, rank: Rank, stderr: &Tail, stdout: &Tail) -> Words {
    let of_rank = gang.evidence().iter().filter(|evidence| evidence.rank == rank);
    let record = gang.ranks().get(rank);
    let leader = record.and_then(|record| record.pid);
    let leaves = |fact: &Fact| matches!(fact, Fact::Exception { source: Source::Program, exception } if is_plain_exit(exception));
    let left = of_rank.clone().find(|evidence| evidence.pid == leader && leaves(&evidence.fact));
    let end = End {
        status: record.and_then(|record| record.status),
        has_aborted: of_rank.clone().any(|evidence| matches!(evidence.fact, Fact::Aborted { .. })),
        has_left: left.is_some(),
    };
    // What the interpreter does after the exit takes its time.
    let ended_at = left.map(|left| left.at).or(record.and_then(|record| record.ended_at));
    Tails { stderr: Some(stderr), stdout: Some(stdout), ended_at }.words(rank.number(), end)
}
