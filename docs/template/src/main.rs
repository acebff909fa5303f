//! The program `courier`: `nicforge` with this card. It serves machines, runs programs on them, and
//! boots guests with them.

use std::process::ExitCode;

use nicforge::{App, DeviceKind};

fn main() -> ExitCode {
    App::new("courier")
        .about("Serve and drive couriers")
        .device(DeviceKind::plain("courier", courier::device::Courier::default))
        .main()
}
