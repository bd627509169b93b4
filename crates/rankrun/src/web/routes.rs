//! What a path asks for. Pure.

use rankrun_core::Rank;
use rankrun_core::top::Sort;

use crate::top::Layout;

/// Rows of a list in one answer.
const MOST_ROWS: usize = 200;
/// Bytes of a filter.
const LONGEST_FILTER: usize = 240;

/// What somebody asks for.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Asked {
    /// A file of the page: its type and its text. It says nothing of any job.
    Page(&'static str, &'static str),
    /// The running jobs.
    Jobs,
    /// The jobs with a report.
    Ended,
    /// Something of one job.
    Job { job: String, what: What },
}

/// What is asked of one job.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum What {
    /// What its ranks do.
    Ranks(Choice),
    /// The stack of a rank.
    Stack(Rank),
    /// The output of a rank; after what was returned before.
    Output { rank: Rank, at: Option<u64> },
    /// Its attempts.
    Attempts,
    /// The report; of this attempt.
    Report(Option<u32>),
}

/// Which ranks are shown, and how.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Choice {
    /// What the user has chosen; otherwise it depends on the number of ranks.
    pub(super) layout: Option<Layout>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// The first row of a list, and how many.
    pub(super) from: usize,
    pub(super) count: usize,
    /// The rank of which all is shown.
    pub(super) rank: Option<Rank>,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice { layout: None, sort: Sort::Rank, filter: String::new(), from: 0, count: MOST_ROWS, rank: None }
    }
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const FILES: [(&str, &str, &str); 7] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/main.js", SCRIPT, include_str!("page/main.js")),
    ("/ask.js", SCRIPT, include_str!("page/ask.js")),
    ("/ranks.js", SCRIPT, include_str!("page/ranks.js")),
    ("/panel.js", SCRIPT, include_str!("page/panel.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// Reads a path and a query; `None` if there is no such thing.
pub(super) fn route(path: &str, query: &str) -> Option<Asked> {
    if let Some((_, kind, text)) = FILES.iter().find(|(name, ..)| *name == path) {
        return Some(Asked::Page(kind, text));
    }
    let fields: Vec<(&str, String)> = query
        .split('&')
        .filter_map(|field| field.split_once('='))
        .filter_map(|(name, value)| Some((name, decode(value)?)))
        .collect();
    let field = |name: &str| fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    let rest = path.strip_prefix("/api/")?;
    let (job, what) = match rest {
        "jobs" => return Some(Asked::Jobs),
        "ended" => return Some(Asked::Ended),
        rest => rest.strip_prefix("jobs/")?.split_once('/')?,
    };
    if job.len() != 8 || !job.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let rank = || field("rank").and_then(|text| text.parse().ok()).map(Rank);
    let what = match what {
        "ranks" => What::Ranks(Choice {
            layout: match field("layout") {
                Some("list") => Some(Layout::List),
                Some("grid") => Some(Layout::Grid),
                _ => None,
            },
            sort: Sort::ALL.into_iter().find(|sort| field("sort") == Some(sort.name())).unwrap_or_default(),
            filter: field("filter").filter(|filter| filter.len() <= LONGEST_FILTER).unwrap_or_default().to_owned(),
            from: field("from").and_then(|text| text.parse().ok()).unwrap_or(0),
            count: field("count").and_then(|text| text.parse().ok()).unwrap_or(MOST_ROWS).min(MOST_ROWS),
            rank: rank(),
        }),
        "stack" => What::Stack(rank()?),
        "output" => What::Output { rank: rank()?, at: field("at").and_then(|text| text.parse().ok()) },
        "attempts" => What::Attempts,
        "report" => What::Report(field("attempt").and_then(|text| text.parse().ok())),
        _ => return None,
    };
    Some(Asked::Job { job: job.to_owned(), what })
}

/// The text that `encodeURIComponent` has made this of.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        rest = others;
        bytes.push(match first {
            b'%' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return None;
                }
                rest = &rest[2..];
                u8::from_str_radix(digits, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_file_of_the_page_or_asks_for_something_of_a_job() {
        assert!(matches!(route("/", ""), Some(Asked::Page(HTML, _))));
        assert_eq!(route("/api/jobs", ""), Some(Asked::Jobs));
        let of = |what| Some(Asked::Job { job: "7f3a91c2".to_owned(), what });
        assert_eq!(route("/api/jobs/7f3a91c2/stack", "rank=3"), of(What::Stack(Rank(3))));
        assert_eq!(route("/api/jobs/7f3a91c2/report", ""), of(What::Report(None)));
        let chosen = Choice {
            layout: Some(Layout::Grid),
            sort: Sort::Odd,
            filter: "node 02 ü".to_owned(),
            from: 5,
            count: MOST_ROWS,
            rank: Some(Rank(1)),
        };
        let query = "layout=grid&sort=odd%20first&filter=node%2002%20%C3%BC&from=5&count=99999&rank=1&x&=";
        assert_eq!(route("/api/jobs/7f3a91c2/ranks", query), of(What::Ranks(chosen)));
    }

    #[test]
    fn nonsense_is_nothing() {
        let paths = [
            "",
            "/x",
            "/../page.css",
            "/api",
            "/api/",
            "/api/jobs/",
            "/api/jobs/7f3a91c2",
            "/api/jobs/7f3a91c2/",
            "/api/jobs/7f3a91c2/stack",
            "/api/jobs/7F3A91C2/ranks",
            "/api/jobs/../../etc/report",
            "/api/jobs/%2e%2e/report",
            "/api/jobs/7f3a91c2/ranks/x",
        ];
        for path in paths {
            assert_eq!(route(path, "rank=x"), None, "{path}");
        }
        let Some(Asked::Job { what, .. }) =
            route("/api/jobs/7f3a91c2/ranks", "filter=%&sort=%zz&from=-1&rank=99999999999")
        else {
            panic!("it is a path");
        };
        assert_eq!(what, What::Ranks(Choice::default()));
        assert_eq!([decode("%"), decode("%e"), decode("%ff"), decode("%+1")], [None, None, None, None]);
    }
}
