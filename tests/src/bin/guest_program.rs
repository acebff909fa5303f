//! Plays a role in a guest: `guest_program ROLE [ARGUMENT]...`; see
//! `nicforge_tests::guest_program`.

fn main() {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next().unwrap_or_default();
    nicforge_tests::guest_program::run_role(&role, &arguments.collect::<Vec<_>>());
}
