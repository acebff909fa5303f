//! Tests of the channel against a guest that the test plays.

use std::sync::mpsc;

use super::{jobs::MAX_OUTPUT, *};

const LONG: Duration = Duration::from_secs(60);

fn agent() -> (AgentChannel, UnixStream) {
    let (host, guest) = UnixStream::pair().unwrap();
    (AgentChannel::new(host).unwrap(), guest)
}

fn started() -> (AgentChannel, UnixStream) {
    let (agent, mut guest) = agent();
    guest.write_all(b"0 n something\n0 ready\n").unwrap();
    assert_eq!(agent.wait_started(1, Instant::now() + LONG), StartOutcome::Started);
    (agent, guest)
}

#[test]
fn a_job_has_its_lines_and_its_status() {
    let (agent, mut guest) = started();
    let job = agent.start(&"x".into()).unwrap();
    guest.write_all(b"1 o one\n1 e+ bad \n1 o two\n1 e thing\n1 x 3\n").unwrap();

    let output =
        Output { status: 3, stdout: "one\ntwo\n".into(), stderr: "bad thing\n".into(), truncated: false };

    assert_eq!(agent.wait(job, Instant::now() + LONG), Outcome::Done(output));
    assert_eq!(agent.notes(), ["something"]);
}

#[test]
fn a_job_has_begun_when_the_guest_says_so_or_sends_a_line_of_it() {
    for report in ["s", "o line", "x 0"] {
        let (agent, mut guest) = started();
        let [first, second] = [agent.start(&"x".into()).unwrap(), agent.start(&"y".into()).unwrap()];
        assert!(!agent.has_begun(first) && !agent.has_begun(second));

        guest.write_all(format!("{second} {report}\n{first} x 0\n").as_bytes()).unwrap();
        assert!(matches!(agent.wait(first, Instant::now() + LONG), Outcome::Done(_)));
        assert!(agent.has_begun(second), "{report}");
    }
}

#[test]
fn a_guest_that_reboots_or_ends_ends_the_wait() {
    let (agent, mut guest) = started();
    let job = agent.start(&"x".into()).unwrap();
    guest.write_all(b"0 ready\n").unwrap();

    assert_eq!(agent.wait(job, Instant::now() + LONG), Outcome::Restarted);

    let job = agent.start(&"x".into()).unwrap();
    drop(guest);

    assert_eq!(agent.wait(job, Instant::now() + LONG), Outcome::Gone);
}

#[test]
fn nonsense_and_endless_lines_do_no_harm() {
    let (agent, mut guest) = started();
    let job = agent.start(&"x".into()).unwrap();
    guest.write_all(&vec![b'a'; 100_000]).unwrap();
    guest.write_all(b"\n\n9 o unknown\n1\n1 q\n\xff\xfe\n1 x\n").unwrap();

    let Outcome::Done(output) = agent.wait(job, Instant::now() + LONG) else { panic!("it has not ended") };

    assert_eq!(output, Output { status: 255, ..Output::default() });
}

#[test]
fn output_without_end_is_cut() {
    let (agent, mut guest) = started();
    let job = agent.start(&"x".into()).unwrap();
    let line = format!("1 o {}\n", "y".repeat(4000));

    for _ in 0..5000 {
        guest.write_all(line.as_bytes()).unwrap();
    }

    guest.write_all(b"1 x 0\n").unwrap();
    let Outcome::Done(output) = agent.wait(job, Instant::now() + LONG) else { panic!("it has not ended") };

    assert!(output.truncated && output.stdout.len() <= MAX_OUTPUT);
}

#[test]
fn a_blocked_sink_delays_neither_a_wait_nor_the_end() {
    let (agent, mut guest) = started();
    let (entered, has_entered) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let sink: LineSink = Arc::new(move |_, _| {
        entered.send(()).unwrap();
        // The sink returns after the test has ended.
        let _ = released.lock().unwrap().recv();
    });

    let job = agent.start(&Job::shell("x").on_line(sink)).unwrap();
    guest.write_all(b"1 o one\n1 o two\n1 x 0\n").unwrap();
    has_entered.recv_timeout(LONG).unwrap();

    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        sender.send(agent.wait(job, Instant::now())).unwrap();
        drop(agent);
        sender.send(Outcome::Gone).unwrap();
    });

    assert_eq!(receiver.recv_timeout(LONG), Ok(Outcome::TimedOut));
    assert_eq!(receiver.recv_timeout(LONG), Ok(Outcome::Gone), "the end waits for the sink");
    drop(release);
}

#[test]
fn a_sink_sees_every_line_although_not_all_is_kept() {
    let (agent, mut guest) = started();
    let (sender, receiver) = mpsc::channel();
    let sink: LineSink = Arc::new(move |_, line| sender.send(line.to_owned()).unwrap());
    let job = agent.start(&Job::shell("x").on_line(sink)).unwrap();
    let line = format!("1 o {}\n", "y".repeat(4000));

    for _ in 0..5000 {
        guest.write_all(line.as_bytes()).unwrap();
    }

    guest.write_all(b"1 o+ the la\n1 o st\n1 e words\n1 x 0\n").unwrap();
    let Outcome::Done(output) = agent.wait(job, Instant::now() + LONG) else { panic!("it has not ended") };

    assert!(output.truncated && output.stderr.is_empty());

    let lines: Vec<String> = receiver.try_iter().collect();
    assert_eq!(lines.len(), 5002);
    assert_eq!(lines[5000..], ["the last", "words"]);
}

#[test]
fn an_unterminated_line_is_cut_and_the_next_one_is_whole() {
    let (agent, mut guest) = started();
    let (sender, receiver) = mpsc::channel();
    let sink: LineSink = Arc::new(move |_, line| sender.send(line.to_owned()).unwrap());
    let job = agent.start(&Job::shell("x").on_line(sink)).unwrap();
    let part = format!("1 o+ {}\n", "y".repeat(4000));

    for _ in 0..5000 {
        guest.write_all(part.as_bytes()).unwrap();
    }

    guest.write_all(b"1 o \n1 o next\n1 x 0\n").unwrap();
    let Outcome::Done(output) = agent.wait(job, Instant::now() + LONG) else { panic!("it has not ended") };

    assert!(output.truncated);

    let lines: Vec<String> = receiver.try_iter().collect();
    assert!(lines[0].len() <= MAX_OUTPUT);
    assert_eq!(lines[1..], ["next"]);
}

#[test]
fn a_second_wait_returns_the_same_outcome() {
    let (agent, mut guest) = started();
    let ended = agent.start(&"x".into()).unwrap();
    // The line after the exit status comes too late.
    guest.write_all(b"1 o one\n1 x 3\n1 o late\n").unwrap();

    let first = agent.wait(ended, Instant::now() + LONG);
    assert!(matches!(first, Outcome::Done(_)));

    let restarted = agent.start(&"x".into()).unwrap();
    // The guest has started again.
    guest.write_all(b"0 ready\n").unwrap();

    assert_eq!(agent.wait(restarted, Instant::now() + LONG), Outcome::Restarted);
    assert_eq!(agent.wait(restarted, Instant::now()), Outcome::Restarted);
    assert_eq!(agent.wait(ended, Instant::now()), first);
}

#[test]
fn a_script_that_is_too_long_is_refused() {
    let (agent, _guest) = started();
    assert!(agent.start(&Job::shell("x".repeat(MAX_SCRIPT + 1))).is_err());
}

#[test]
fn calls_of_barriers_are_taken_once_and_answered() {
    let (agent, mut guest) = agent();
    // A start forgets the calls of the last one, and impossible calls are none.
    guest.write_all(b"0 ready\n0 b 41 x 60\n0 ready\n0 b 44 all-here 60\n").unwrap();
    guest.write_all(b"0 b\n0 b x y 1\n0 b 1 bad/name 1\n0 b 1 x 0\n0 b 1 x 86401\n0 n well\n").unwrap();
    let deadline = Instant::now() + LONG;
    while agent.notes().is_empty() {
        assert!(Instant::now() < deadline, "the note does not come");
        std::thread::yield_now();
    }

    let call = BarrierCall { number: 44, name: "all-here".into(), limit: Duration::from_secs(60) };
    assert_eq!(agent.take_calls(), [call]);
    assert_eq!(agent.take_calls(), []);

    agent.answer(44, 1, "the command\nin n1 has ended").unwrap();
    let mut line = [0; 40];
    guest.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"44 answer 1 the command in n1 has ended\n");
}
