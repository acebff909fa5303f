//! Requests that the server of the `vfio_user` crate refuses before it has read their data.
//!
//! It then takes the data for the next message, so later messages may be split wrongly. nicforge's
//! driver sends neither request: it knows the number of regions, and names interrupts by
//! descriptors and ranges.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use nicforge_tests::backing::LIMIT;
use nicforge_vfio_user::{
    Client, ClientConfig, Errno, PCI_MSIX_IRQ, PCI_NUM_REGIONS,
    wire::{Command, HEADER_SIZE, Header},
};
use vfio_bindings::bindings::vfio::{VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_BOOL};

use super::rig::Rig;
use crate::interop::common::with_time_out;

/// Sends a request with four bytes of data, which the server refuses before it has read them. The
/// server then takes the four bytes for the start of a message with the id 1. Returns the errors of
/// the replies to the request and to that message.
fn errors_of_request_and_unread_data(command: Command, payload: &[u8]) -> [Errno; 2] {
    let rig = Rig::start();
    let mut stream = UnixStream::connect(&rig.path).unwrap();
    let config = ClientConfig { timeout: LIMIT, ..ClientConfig::default() };
    let negotiated = Client::from_socket(stream.try_clone().unwrap().into(), config).unwrap();

    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let data = [1, 0, 0, 0];
    let header = Header::request(77, command, payload.len() + data.len(), false).to_bytes();

    stream.write_all(&[&header, payload, &data].concat()).unwrap();
    let mut reply = || {
        let mut header = [0; HEADER_SIZE];
        stream.read_exact(&mut header).unwrap();
        Header::parse(&header).unwrap()
    };

    let [refused, stray] = [reply(), reply()];
    assert_eq!((refused.id, refused.command), (77, command));
    assert_eq!((stray.id, stray.command), (1, Command::Unknown(0)));

    drop((stream, negotiated));
    [refused, stray].map(|header| header.reply_error().unwrap())
}

#[test]
fn data_of_a_write_to_no_region_are_taken_for_a_message_by_the_vfio_user_crate() {
    with_time_out(|| {
        let words = [0, 0, PCI_NUM_REGIONS, 4];
        let access = words.map(u32::to_le_bytes).concat();
        let errors = errors_of_request_and_unread_data(Command::RegionWrite, &access);
        assert_eq!(errors, [Errno::EINVAL, Errno::EIO]);
    });
}

#[test]
fn bools_are_refused_by_the_vfio_user_crate_and_taken_for_a_message() {
    with_time_out(|| {
        let flags = VFIO_IRQ_SET_ACTION_TRIGGER | VFIO_IRQ_SET_DATA_BOOL;
        let words = [24, flags, PCI_MSIX_IRQ, 0, 4];
        let set = words.map(u32::to_le_bytes).concat();
        let errors = errors_of_request_and_unread_data(Command::DeviceSetIrqs, &set);
        assert_eq!(errors, [Errno::EIO, Errno::EIO]);
    });
}
