//! Whole screens, as text: of jobs of 4 to 4,096 ranks, in windows of several sizes.

use rankrun_core::condition::Doing;
use rankrun_core::control::{JobState, JobStatus, RankStatus, RankUsage};
use rankrun_core::standing::Phase;
use rankrun_core::top::Model;
use rankrun_core::usage::GpuUsage;
use rankrun_core::{Attempt, JobId, Pid, Rank};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};

use super::draw::{Line, Paint, draw};
use super::keys::Key;
use super::view::{Action, View};

const SIZES: [(u16, u16); 3] = [(80, 24), (200, 50), (40, 12)];

/// A rank of a job with eight ranks a node, `second` seconds after its start.
fn rank(number: u32, second: u32) -> RankStatus {
    let now = 1000.0 + f64::from(second);
    // Rank 3 is stopped, rank 5 waits for something, rank 6 is dead; of each 100 ranks one is behind and one is silent.
    let speed = if number % 100 == 50 { 20.0 } else { 50.0 };
    let done = speed * f64::from(second) / 10.0 + f64::from(number % 3);
    let cpu = if number == 5 { 0.01 } else { 0.97 + f64::from(number % 7) / 100.0 };
    let usage = RankUsage {
        at: now,
        cpu: cpu * f64::from(second),
        memory: (300 + u64::from(number % 13)) << 20,
        read: Some((u64::from(number % 5) * u64::from(second)) << 20),
        written: Some(0),
        processes: 3,
        threads: 40,
        is_stopped: number == 3,
        gpus: vec![GpuUsage { index: number % 8, busy: Some(90 + number % 8), memory: Some(12 << 30) }],
    };
    let is_dead = number == 6;
    RankStatus {
        rank: Rank(number),
        attempt: Attempt(1),
        node: format!("node{:03}", number / 8),
        cpus: None,
        pid: (!is_dead).then_some(Pid(1000 + number as i32)),
        state: if is_dead { Doing::Ended } else { Doing::Running },
        since: Some(1000.0),
        until: None,
        why: is_dead.then(|| "SIGKILL".to_owned()),
        is_saving: false,
        phase: Phase::InMpi,
        phase_since: Some(1001.0),
        wrote: Some(if number % 100 == 70 { 900.0 } else { now - 0.3 }),
        last_line: Some(format!("epoch 3:  {done:.0}%|####      | {done:.0}/100 [00:10<00:12,  4.43it/s, loss=0.312]")),
        note: None,
        usage: (!is_dead).then_some(usage),
    }
}

/// A job after twelve seconds.
pub(crate) fn model(ranks: u32) -> Model {
    let mut model = Model::default();
    for second in 9..=12 {
        model.take(JobStatus {
            job: JobId("7f3a91c2".to_owned()),
            release: "0.1.0".to_owned(),
            pid: Pid(42),
            front_pid: Some(Pid(42)),
            detached: false,
            command: ["python", "train.py", "--config", "large model.yaml"].map(str::to_owned).into(),
            directory: "/home/me".to_owned(),
            world_size: ranks,
            attempt: Attempt(1),
            started: 400.0,
            now: 1000.0 + f64::from(second),
            state: JobState::Running,
            since: 1000.0,
            until: None,
            why: None,
            restarts_left: Some(2),
            silent_nodes: Vec::new(),
            members: Vec::new(),
            ranks: (0..ranks).map(|number| rank(number, second)).collect(),
        });
    }
    model
}

fn drawn(view: &mut View, model: &Model, line: &Line, (width, height): (u16, u16)) -> Buffer {
    let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width, height });
    draw(view, model, line, Paint { is_colored: true }, &mut buffer);
    buffer
}

/// The lines of a picture, without the spaces at their ends.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let line = |cells: &[ratatui_core::buffer::Cell]| {
        cells.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
    };
    buffer.content().chunks(width).map(line).collect::<Vec<_>>().join("\n")
}

fn press(view: &mut View, model: &Model, keys: &str) -> Vec<Action> {
    let pressed = super::keys::Decoder::default().read(keys.as_bytes());
    pressed.into_iter().filter_map(|key| view.press(key, model)).collect()
}

#[test]
fn jobs_of_any_size_are_drawn_in_any_window() {
    for ranks in [4, 64, 1024, 4096] {
        let model = model(ranks);
        for (width, height) in SIZES {
            let picture = text(&drawn(&mut View::default(), &model, &Line::Live, (width, height)));
            assert_eq!(picture.lines().count(), usize::from(height));
            insta::assert_snapshot!(format!("{ranks}_ranks_in_{width}x{height}"), picture);
        }
    }
}

#[test]
fn the_other_layout_is_chosen_by_a_key_and_the_selected_rank_stays() {
    let model = model(1024);
    let mut view = View::default();
    drawn(&mut view, &model, &Line::Live, (80, 24));
    press(&mut view, &model, "jl");
    drawn(&mut view, &model, &Line::Live, (80, 24));
    let selected = view.selected();
    press(&mut view, &model, "v");
    let list = text(&drawn(&mut view, &model, &Line::Live, (80, 24)));
    assert_eq!(view.selected(), selected);
    assert!(list.contains(&format!("{:>6} running", selected.expect("one").number())), "{list}");
    insta::assert_snapshot!(list);
}

#[test]
fn odd_ranks_are_first_on_request_and_the_next_one_is_a_key_away() {
    let model = model(1024);
    let mut view = View::default();
    drawn(&mut view, &model, &Line::Live, (80, 24));
    let mut seen = Vec::new();
    for _ in 0..5 {
        press(&mut view, &model, "n");
        seen.push(view.selected().expect("one").number());
    }
    assert_eq!(seen, [3, 5, 6, 50, 70]);
    press(&mut view, &model, "N");
    assert_eq!(view.selected(), Some(Rank(50)));
    press(&mut view, &model, "v!");
    insta::assert_snapshot!(text(&drawn(&mut view, &model, &Line::Live, (100, 14))));
}

#[test]
fn a_filter_shows_only_what_it_names() {
    let model = model(64);
    let mut view = View::default();
    drawn(&mut view, &model, &Line::Live, (80, 24));
    press(&mut view, &model, "/node002");
    let typing = text(&drawn(&mut view, &model, &Line::Live, (80, 16)));
    assert!(typing.ends_with("/node002_"), "{typing}");
    press(&mut view, &model, "\r");
    insta::assert_snapshot!(text(&drawn(&mut view, &model, &Line::Live, (80, 16))));
    press(&mut view, &model, "/\x7f\x7f\x7f\x7f\x7f\x7f\x7fno such\r");
    let none = text(&drawn(&mut view, &model, &Line::Live, (80, 16)));
    assert!(view.places.is_empty(), "{none}");
    assert_eq!(press(&mut view, &model, "sjGn"), []);
}

#[test]
fn every_rank_is_reached_by_keys_and_the_selected_one_is_in_the_window() {
    for (ranks, size) in [(64, (40, 12)), (1024, (80, 24)), (4096, (200, 50))] {
        let model = model(ranks);
        let mut view = View::default();
        for keys in ["", "jjjj", " ", " ", "G", "k", "l", "h", "\x1b[5~", "g", "v", "G", "\x1b[A", "v"] {
            press(&mut view, &model, keys);
            let picture = drawn(&mut view, &model, &Line::Live, size);
            let reversed = picture.content().iter().filter(|cell| cell.modifier.contains(Modifier::REVERSED)).count();
            // In the list, its line besides the heading; in the grid, its character.
            assert!(reversed >= 1, "{keys:?} in {ranks}\n{}", text(&picture));
            let place = view.places.iter().find(|place| Some(place.rank) == view.selected()).expect("one");
            assert!((view.top..view.top + view.page).contains(&place.line), "{keys:?} in {ranks}");
        }
    }
}

#[test]
fn a_rank_is_shown_with_all_that_is_known_of_it() {
    let model = model(4);
    let mut view = View::default();
    drawn(&mut view, &model, &Line::Live, (80, 24));
    press(&mut view, &model, "jjj\r");
    insta::assert_snapshot!(text(&drawn(&mut view, &model, &Line::Live, (80, 22))));
    assert_eq!(press(&mut view, &model, "s"), [Action::Stack(Rank(3))]);
    view.show_stack(Rank(3), vec!["rank 3 on node000: pid 1003".to_owned(), "  main\u{1b}[2J".to_owned()]);
    let stack = text(&drawn(&mut view, &model, &Line::Live, (80, 22)));
    assert!(stack.contains("main\\x1b[2J"), "{stack}");
}

#[test]
fn a_job_is_stopped_or_restarted_only_after_a_yes() {
    let model = model(4);
    let mut view = View::default();
    for (keys, actions) in [
        ("S", &[][..]),
        ("n", &[]),
        ("Sy", &[Action::Stop]),
        ("xY", &[Action::Stop]),
        ("r\x7f", &[]),
        ("ry", &[Action::Restart]),
        ("Sq", &[]),
        ("?Sy", &[Action::Stop]),
        ("?q", &[Action::Quit]),
        ("S\x03", &[Action::Interrupt]),
    ] {
        if keys == "?q" {
            // The first closes the help that is open.
            press(&mut view, &model, "q");
            view.panel = None;
            assert_eq!(press(&mut view, &model, "q"), *actions);
            continue;
        }
        assert_eq!(press(&mut view, &model, keys), *actions, "{keys}");
    }
    view.prompt = None;
    press(&mut view, &model, "S");
    let asked = text(&drawn(&mut view, &model, &Line::Live, (80, 10)));
    assert!(asked.contains("stop job 7f3a91c2, as SIGTERM to its rankrun does? y/n"), "{asked}");
}

#[test]
fn what_is_wrong_with_the_job_or_its_front_is_said_in_the_second_line() {
    let model = model(4);
    let shown = |line: Line| text(&drawn(&mut View::default(), &model, &line, (80, 12)));
    insta::assert_snapshot!(shown(Line::Over { exit_code: 137, summary: "rank 2 failed: SIGKILL".to_owned() }));
    assert!(shown(Line::Silent(4.2)).contains("its front does not answer for 4.2s: what is shown is old"));
    assert!(shown(Line::Paused(42)).contains("paused: its rankrun, process 42, is stopped"));
    assert!(shown(Line::Gone("it is gone".to_owned())).contains("it is gone"));
    assert!(
        text(&drawn(&mut View::default(), &Model::default(), &Line::Live, (80, 4))).contains("waiting for the job")
    );
    for size in [(1, 1), (9, 3), (10, 4), (11, 5), (1000, 4)] {
        for keys in ["", "v", "?", "\r", "S"] {
            let mut view = View::default();
            press(&mut view, &model, keys);
            drawn(&mut view, &model, &Line::Live, size);
        }
    }
}

#[test]
fn without_colours_the_same_is_said_by_characters() {
    let model = model(64);
    let mut view = View::default();
    let mut plain = Buffer::empty(Rect { x: 0, y: 0, width: 80, height: 24 });
    draw(&mut view, &model, &Line::Live, Paint { is_colored: false }, &mut plain);
    assert!(plain.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert_eq!(text(&plain), text(&drawn(&mut View::default(), &model, &Line::Live, (80, 24))));
    assert_eq!(view.press(Key::Control('l'), &model), Some(Action::Redraw));
}
