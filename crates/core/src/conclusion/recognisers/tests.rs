use super::*;

fn exited(code: u8) -> End {
    End { status: Some(WorkerStatus::Exited { code }), ..End::default() }
}

fn headline(text: &str, end: End) -> Option<String> {
    choose(&text.lines().collect::<Vec<_>>(), end).map(|cause| cause.exception.headline())
}

#[test]
fn the_reason_before_a_failed_use_of_perl_is_the_cause() {
    // perl 5.36
    let text = "Can't locate Not/There.pm in @INC (you may need to install the Not::There module) at main.pl line 1.\n\
        BEGIN failed--compilation aborted at main.pl line 1.\n";
    let cause = headline(text, exited(2)).expect("a cause");
    assert!(cause.starts_with("Can't locate Not/There.pm in @INC"), "{cause}");
}

#[test]
fn a_file_that_pytest_cannot_import_has_its_reason() {
    // pytest 8
    let text = "E   ModuleNotFoundError: No module named 'cupy'\n\
        =========================== short test summary info ============================\n\
        ERROR test_a.py\n\
        !!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!\n\
        1 error in 0.10s\n";
    let cause = headline(text, exited(2)).expect("a cause");
    assert_eq!(cause, "ERROR test_a.py - ModuleNotFoundError: No module named 'cupy'");
}
