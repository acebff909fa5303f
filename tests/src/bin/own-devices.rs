//! A program of a user's own: nicforge with the devices of [`nicforge_tests::own_devices`], and no
//! others.

use std::process::ExitCode;

use nicforge::App;
use nicforge_tests::own_devices::families;

fn main() -> ExitCode {
    App::new("own-devices").about("Serve stations and hubs").version("7.8.9").families(families()).main()
}
