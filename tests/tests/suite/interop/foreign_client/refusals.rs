//! The `vfio_user` crate's client after a refused request.
//!
//! An error reply is only a header. The `vfio_user` crate reads the whole expected reply without
//! examining the header first, so it waits for bytes that never arrive. The server's reply is
//! correct, and the server is not affected.

use std::{io::ErrorKind, thread};

use nicforge_hwi::proof::slot_fifo::REG_FILL;
use nicforge_tests::backing::Rig;
use nicforge_vfio_user::{PCI_CONFIG_REGION, PCI_NUM_IRQS};
use vfio_user::{Client, Error};

use super::{attachment, connect, proof};
use crate::interop::common::{poll_until, with_time_out};

/// Checks that `request` is refused, that its caller waits until the connection ends, and that
/// others are served meanwhile.
fn check_refusal_blocks_its_caller(request: impl FnOnce(&mut Client) -> Result<(), Error> + Send + 'static) {
    with_time_out(|| {
        let served = proof();
        let mut client = connect(&served, "fifo0", "user0");
        let messages = || attachment(&served, "fifo0", "user0").client.unwrap().messages;
        let before = messages();

        let caller = thread::spawn(move || request(&mut client));
        poll_until("the request is answered", || messages() == before + 1);

        let second_client = served.open("fifo0", "user1");
        assert_eq!(second_client.bar(0).unwrap().read32(REG_FILL).unwrap(), 0);
        assert!(!caller.is_finished());

        served.evict("fifo0", "user0");
        let ended = caller.join().unwrap();

        assert!(matches!(ended, Err(Error::StreamRead(error)) if error.kind() == ErrorKind::UnexpectedEof));
    });
}

#[test]
fn a_read_out_of_range_blocks_the_vfio_user_crate_and_no_other_client() {
    check_refusal_blocks_its_caller(|client| client.region_read(PCI_CONFIG_REGION, 1 << 20, &mut [0; 4]));
}

#[test]
fn a_write_out_of_range_blocks_the_vfio_user_crate_and_no_other_client() {
    check_refusal_blocks_its_caller(|client| client.region_write(1, 1 << 40, &[0; 4]));
}

#[test]
fn an_unknown_interrupt_type_blocks_the_vfio_user_crate_and_no_other_client() {
    // The wake-up of clients follows the interrupt types of PCI.
    check_refusal_blocks_its_caller(|client| client.get_irq_info(PCI_NUM_IRQS + 1).map(drop));
}

#[test]
fn an_unmap_of_an_unmapped_range_blocks_the_vfio_user_crate_and_no_other_client() {
    check_refusal_blocks_its_caller(|client| client.dma_unmap(0x1000, 0x1000));
}
