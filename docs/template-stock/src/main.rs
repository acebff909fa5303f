//! The program `ferry`: `nicforge` with this card. It serves machines, and boots guests with them.

use std::process::ExitCode;

use nicforge::{App, DeviceKind};

fn main() -> ExitCode {
    App::new("ferry")
        .about("Serve ferries, and boot guests with them")
        .device(DeviceKind::plain("ferry", ferry::device::Ferry::default))
        .main()
}
