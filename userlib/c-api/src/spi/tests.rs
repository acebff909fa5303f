//! Tests of the C API from Rust: a node that sends to itself, in this process.
#![allow(unsafe_code, reason = "the functions of a C API are called")]

use std::{
    ffi::{CStr, c_int, c_void},
    ptr::null_mut,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nicforge_driver::{Device, Relax};
use nicforge_machine::{build::build, description::parse, in_process::LocalMachine};
use nicforge_nics::families;

use super::{
    library::{self, Node},
    *,
};
use crate::support::Failure;

/// The process has one library, so one test at a time uses it.
static ONE_TEST_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Time that a test gives an event before it fails.
const LIMIT: Duration = Duration::from_secs(60);
/// Length of the memory.
const BYTES: usize = 64 << 10;
// Offsets in the memory.
const INJECTION_FIFO: usize = 0;
const RECEPTION_FIFO: usize = 4096;
const COUNTER: usize = 16 << 10;
const SOURCE: usize = 20 << 10;
const SINK: usize = 40 << 10;
/// Map of network injection FIFOs with the first one for messages of a node to itself.
const LOCAL0: u64 = 0x20;
/// The virtual channel of deterministic routing, as in `Misc2`.
const DETERMINISTIC: u8 = 0x20;
/// Bytes of a packet's header.
const PACKET_HEADER: usize = 32;
/// Atomic operation of a put's counter: the unit adds the negative number of bytes.
const STORE_ADD: u64 = 2;
/// First software byte of the messages, which is the number of the receiving function.
const FUNCTION_ID: u8 = 200;
/// Cycles of a second.
const SECOND: u64 = 1_000_000 * NICFORGE_SPI_CYCLES_PER_US;

/// Calls a function of the API.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: all pointers are NULL where that is refused, or refer to variables of the test.
        unsafe { $call }
    }};
}

/// The node of a machine in this process.
struct LocalNode(Arc<LocalMachine>);

impl LocalNode {
    /// Opens an attachment of the first node's unit.
    fn open(&self, attachment: &str) -> Result<Device, Failure> {
        Ok(Device::from_backing(self.0.open_named("bgq0", attachment).unwrap()).unwrap())
    }
}

impl Node for LocalNode {
    fn open_kernel(&self) -> Result<Device, Failure> {
        self.open("kernel")
    }

    fn open_subgroup(&self, number: u32) -> Result<Device, Failure> {
        self.open(&format!("s{number}"))
    }
}

/// Returns the text of this thread's last error.
fn last_text() -> String {
    // SAFETY: valid until this thread's next error.
    unsafe { CStr::from_ptr(nicforge_spi_last_error()) }.to_string_lossy().into_owned()
}

/// The library with one injection FIFO, one reception FIFO and one base address of subgroup 0, all
/// with number 0. The base address is that of the memory.
struct Session {
    memory: *mut u8,
    region: Kernel_MemoryRegion_t,
    injection: MUSPI_InjFifoSubGroup_t,
    reception: MUSPI_RecFifoSubGroup_t,
    table: MUSPI_BaseAddressTableSubGroup_t,
    /// A device that the test uses to let the machine's time pass.
    clock: Device,
    _exclusive: MutexGuard<'static, ()>,
}

impl Session {
    /// Begins with a node of a new machine.
    fn new() -> Self {
        let exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let text = "name = \"node\"\n[[bgq]]\ntorus = [2]\nsubgroups = 2\n";
        let machine = build(&parse(text, "node.toml", &families()).unwrap()).unwrap().0;
        let node = Arc::new(LocalNode(LocalMachine::new(machine)));
        let clock = node.open("s1").unwrap();
        library::begin(node);

        let memory = nicforge_spi_allocate(0, BYTES);
        assert!(!memory.is_null(), "{}", last_text());
        let mut region = Kernel_MemoryRegion_t { Bytes: 0, BaseVa: null_mut(), BasePa: null_mut() };
        assert_eq!(call!(Kernel_CreateMemoryRegion(&mut region, memory, BYTES)), 0, "{}", last_text());

        let (mut zero, mut attributes) = (0, Kernel_InjFifoAttributes_t::default());
        let owner = std::ptr::null();
        let injfifo = MUSPI_InjFifo_t { owner, number: 0 };
        let mut injection = MUSPI_InjFifoSubGroup_t { _injfifos: [injfifo; 8], subgroupid: 0 };
        let fifos = &raw mut zero;
        assert_eq!(call!(Kernel_AllocateInjFifos(0, &mut injection, 1, fifos, &mut attributes)), 0);
        assert_eq!(call!(Kernel_InjFifoInit(&mut injection, 0, &mut region, INJECTION_FIFO as u64, 1023)), 0);
        assert_eq!(call!(Kernel_InjFifoActivate(&mut injection, 1, fifos, KERNEL_INJ_FIFO_ACTIVATE)), 0);

        let recfifo = MUSPI_RecFifo_t { owner, number: 0 };
        let mut reception = MUSPI_RecFifoSubGroup_t { _recfifos: [recfifo; 4], subgroupid: 0 };
        let mut attributes = Kernel_RecFifoAttributes_t::default();
        assert_eq!(call!(Kernel_AllocateRecFifos(0, &mut reception, 1, fifos, &mut attributes)), 0);
        assert_eq!(call!(Kernel_RecFifoInit(&mut reception, 0, &mut region, RECEPTION_FIFO as u64, 4095)), 0);
        assert_eq!(Kernel_RecFifoEnable(0, 1 << 15), 0, "{}", last_text());

        let mut table = MUSPI_BaseAddressTableSubGroup_t { owner, subgrpid: 0, permissions: 0 };
        assert_eq!(call!(Kernel_AllocateBaseAddressTable(0, &mut table, 1, fifos, 0)), 0);
        assert_eq!(call!(MUSPI_SetBaseAddress(&mut table, 0, region.BasePa.addr() as u64)), 0);
        Self { memory: memory.cast(), region, injection, reception, table, clock, _exclusive: exclusive }
    }

    /// Passes time until `condition` holds.
    fn poll_until(&mut self, mut condition: impl FnMut(&mut Self) -> bool) {
        let mut relax = Relax::new();
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            if condition(self) {
                return;
            }
            self.clock.relax(&mut relax).unwrap();
        }
        panic!("not within {LIMIT:?}; {}", last_text());
    }

    /// Returns the injection FIFO.
    fn fifo(&mut self) -> *mut MUSPI_InjFifo_t {
        call!(MUSPI_IdToInjFifo(0, &mut self.injection))
    }

    /// Returns bytes of the memory.
    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        // SAFETY: the range lies in the memory. The unit writes it only while a message to it is
        // sent.
        (at..at + length).map(|at| unsafe { self.memory.wrapping_add(at).read_volatile() }).collect()
    }

    /// Writes bytes to the memory.
    fn fill(&self, at: usize, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            // SAFETY: the range lies in the memory, and no message uses it now.
            unsafe { self.memory.wrapping_add(at).write_volatile(*byte) };
        }
    }

    /// Returns the fields of a message of `length` bytes from [`SOURCE`] to the node itself.
    fn base(&self, length: usize) -> MUSPI_BaseDescriptorInfoFields_t {
        MUSPI_BaseDescriptorInfoFields_t {
            Payload_Address: self.region.BasePa.addr() as u64 + SOURCE as u64,
            Message_Length: length as u64,
            Torus_FIFO_Map: LOCAL0,
            ..Default::default()
        }
    }

    /// Injects a descriptor, and waits for its end.
    fn send(&mut self, mut descriptor: MUHWI_Descriptor_t) {
        let fifo = self.fifo();
        let number = call!(MUSPI_InjFifoInject(fifo, (&raw mut descriptor).cast()));
        assert_ne!(number, u64::MAX, "{}", last_text());
        self.poll_until(|_| call!(MUSPI_CheckDescComplete(fifo, number)) == 1);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        nicforge_spi_close();
    }
}

/// Returns memory for a descriptor.
fn empty_descriptor() -> MUHWI_Descriptor_t {
    MUHWI_Descriptor_t(nicforge_spi::Descriptor::default())
}

/// Returns the route of a message of the node to itself.
fn local_route() -> MUSPI_Pt2PtDescriptorInfoFields_t {
    MUSPI_Pt2PtDescriptorInfoFields_t { Misc2: DETERMINISTIC, ..Default::default() }
}

#[test]
fn a_put_arrives_and_counts() {
    let mut session = Session::new();
    let data: Vec<_> = (0..700).map(|at| (at * 7) as u8).collect();
    session.fill(SOURCE, &data);
    session.fill(COUNTER, &700_u64.to_le_bytes());

    let counter = session.region.BasePa.addr() as u64 + COUNTER as u64;
    let offset = call!(MUSPI_GetAtomicOffsetFromBaseAddress(&mut session.table, 0, counter, STORE_ADD));
    let mut info = MUSPI_Pt2PtDirectPutDescriptorInfo_t {
        Base: session.base(data.len()),
        Pt2Pt: local_route(),
        DirectPut: MUSPI_DirectPutDescriptorInfoFields_t {
            Rec_Payload_Offset: SINK as u64,
            Rec_Counter_Offset: offset,
            ..Default::default()
        },
    };
    let mut descriptor = empty_descriptor();
    assert_eq!(call!(MUSPI_CreatePt2PtDirectPutDescriptor(&mut descriptor, &mut info)), 0, "{}", last_text());

    session.send(descriptor);
    session.poll_until(|session| session.bytes(COUNTER, 8) == [0; 8]);
    assert_eq!(session.bytes(SINK, 700), data);
}

/// The packets that the receiving function has received.
#[derive(Default)]
struct ReceivedPackets {
    packets: u32,
    /// The payloads.
    bytes: Vec<u8>,
    /// The FIFO of the packets, which the function polls from within the poll.
    fifo: *mut MUSPI_RecFifo_t,
}

/// Receiving function that adds a packet to a [`ReceivedPackets`].
unsafe extern "C" fn count_packet(
    param: *mut c_void,
    packet: *mut MUHWI_PacketHeader_t,
    bytes: u32,
) -> c_int {
    // SAFETY: the test has registered this function with a `ReceivedPackets`, which no other thread
    // uses.
    let received = unsafe { &mut *param.cast::<ReceivedPackets>() };
    // SAFETY: a packet has as many bytes by the contract of MUSPI_RecvFunction_t.
    let packet = unsafe { std::slice::from_raw_parts(packet.cast::<u8>(), bytes as usize) };
    received.packets += 1;
    received.bytes.extend_from_slice(&packet[PACKET_HEADER..]);
    // SAFETY: the FIFO is the test's. The call takes no packets.
    assert_eq!(unsafe { MUSPI_RecFifoPoll(received.fifo, 0) }, 0);
    0
}

#[test]
fn a_message_is_dispatched_by_its_first_software_byte() {
    let mut session = Session::new();
    let data: Vec<_> = (0..600).map(|at| (at * 3) as u8).collect();
    session.fill(SOURCE, &data);
    let fifo = call!(MUSPI_IdToRecFifo(0, &mut session.reception));
    let mut received = ReceivedPackets { fifo, ..ReceivedPackets::default() };
    let param = (&raw mut received).cast();
    assert_eq!(call!(MUSPI_RegisterRecvFunction(Some(count_packet), param, FUNCTION_ID.into())), 0);

    let mut software = [0; 14];
    software[0] = FUNCTION_ID;
    let mut info = MUSPI_Pt2PtMemoryFIFODescriptorInfo_t {
        Base: session.base(data.len()),
        Pt2Pt: local_route(),
        MemFIFO: MUSPI_MemoryFIFODescriptorInfoFields_t { SoftwareBytes: software, ..Default::default() },
    };
    let mut descriptor = empty_descriptor();
    assert_eq!(call!(MUSPI_CreatePt2PtMemoryFIFODescriptor(&mut descriptor, &mut info)), 0);
    session.send(descriptor);

    let mut count = 0;
    session.poll_until(|_| {
        count += call!(MUSPI_RecFifoPoll(fifo, 10));
        count == 2
    });
    assert_eq!(MUSPI_DeRegisterReceiveFunction(FUNCTION_ID.into()), 0);
    // SAFETY: the function that shared it is not registered any more.
    let received = unsafe { &*param.cast::<ReceivedPackets>() };
    assert_eq!((received.packets, &received.bytes[..600]), (2, &data[..]));
}

#[test]
fn functions_are_registered_at_the_lowest_free_id() {
    let _exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let first = call!(MUSPI_RegisterReceiveFunction(Some(count_packet), null_mut()));
    let second = call!(MUSPI_RegisterReceiveFunction(Some(count_packet), null_mut()));
    assert_eq!((first, second), (0, 1));
    assert_eq!(MUSPI_DeRegisterReceiveFunction(0), 0);
    assert_eq!(call!(MUSPI_RegisterReceiveFunction(Some(count_packet), null_mut())), 0);
    assert_eq!([0, 1, 256].map(|id| MUSPI_DeRegisterReceiveFunction(id)), [0, 0, -libc::EINVAL]);
    assert_eq!(call!(MUSPI_RegisterRecvFunction(None, null_mut(), 0)), -libc::EFAULT);
    assert_eq!(call!(MUSPI_RegisterRecvFunction(Some(count_packet), null_mut(), 256)), -libc::EINVAL);
}

#[test]
fn resources_are_allocated_once() {
    let mut session = Session::new();
    let (mut attributes, mut both) = ([Kernel_InjFifoAttributes_t::default(); 2], [0, 3]);
    let mut injection = session.injection;
    let mut allocate = |fifos: &mut [u32; 2]| {
        call!(Kernel_AllocateInjFifos(0, &mut injection, 2, fifos.as_mut_ptr(), attributes.as_mut_ptr()))
    };
    assert_eq!(allocate(&mut both), -libc::EBUSY);
    assert_eq!(allocate(&mut [3, 8]), -libc::EINVAL);
    assert_eq!(allocate(&mut [3, 4]), 0);

    let (mut count, mut free) = (0, [99; 8]);
    assert_eq!(call!(Kernel_QueryInjFifos(0, &mut count, free.as_mut_ptr())), 0);
    assert_eq!((count, &free[..5]), (5, &[1, 2, 5, 6, 7][..]));

    assert_eq!(
        call!(Kernel_DeallocateInjFifos(&mut session.injection, 2, [4, 5].as_mut_ptr())),
        -libc::ENXIO
    );
    assert_eq!(call!(Kernel_DeallocateInjFifos(&mut session.injection, 2, [3, 4].as_mut_ptr())), 0);
    assert_eq!(allocate(&mut [4, 7]), 0);

    attributes[0].System = 1;
    let mut system = || {
        let (out, list) = (&mut session.injection, [1].as_mut_ptr());
        call!(Kernel_AllocateInjFifos(0, out, 1, list, attributes.as_mut_ptr()))
    };
    assert_eq!(system(), -libc::EPERM);
}

#[test]
fn other_memory_and_invalid_fields_are_refused() {
    let mut session = Session::new();
    let (mut local, mut region) = ([0_u8; 64], session.region);
    assert_eq!(call!(Kernel_CreateMemoryRegion(&mut region, local.as_mut_ptr().cast(), 64)), -libc::EFAULT);
    assert_eq!(
        call!(Kernel_InjFifoInit(&mut session.injection, 0, &mut session.region, BYTES as u64, 127)),
        -libc::EINVAL
    );
    assert_eq!(
        call!(Kernel_RecFifoInit(&mut session.reception, 0, &mut session.region, 0, 543)),
        -libc::EINVAL
    );
    assert_eq!(call!(MUSPI_SetBaseAddress(&mut session.table, 1, 0)), -libc::ENXIO);

    let mut info = MUSPI_Pt2PtDirectPutDescriptorInfo_t {
        Base: session.base(0),
        Pt2Pt: local_route(),
        ..Default::default()
    };
    let mut descriptor = empty_descriptor();
    let mut create = |info: &mut _| call!(MUSPI_CreatePt2PtDirectPutDescriptor(&mut descriptor, info));
    assert_eq!(create(&mut info), -libc::EINVAL);
    info.Base = session.base(8);
    assert_eq!(create(&mut info), 0);
    // There is no virtual channel 7.
    info.Pt2Pt.Misc2 = 7 << 5;
    assert_eq!(create(&mut info), -libc::EINVAL);
    // The field of the header has 8 bits.
    info.Pt2Pt = MUSPI_Pt2PtDescriptorInfoFields_t { Skip: 256, ..local_route() };
    assert_eq!(create(&mut info), -libc::EINVAL);
    info.Pt2Pt.Skip = 255;
    assert_eq!(create(&mut info), 0);
    info.Pt2Pt = local_route();
    // A node has base addresses 0 to 543.
    info.DirectPut.Rec_Payload_Base_Address_Id = 544;
    assert_eq!(create(&mut info), -libc::EINVAL);
}

#[test]
fn a_node_knows_its_coordinates_and_waits_in_a_barrier() {
    let session = Session::new();
    let mut personality = Personality_t::default();
    assert_eq!(call!(Kernel_GetPersonality(&mut personality, size_of::<Personality_t>())), 0);
    let network = personality.Network_Config;
    assert_eq!((network.Acoord, network.Anodes, network.Bnodes), (0, 2, 1));

    let (mut root, mut me, mut all) = (CR_COORD_T::default(), CR_COORD_T::default(), CR_RECT_T::default());
    all.ur.coords[0] = 1;
    let mut route = ClassRoute_t::default();
    let built =
        call!(MUSPI_BuildNodeClassroute(null_mut(), &mut root, &mut me, &mut all, null_mut(), 0, &mut route));
    assert_eq!((built, route), (0, ClassRoute_t { input: 1 << 10 | 1, output: 0 }));

    let mut attributes = Kernel_GlobalInterruptClassRouteAttributes_t::default();
    assert_eq!(call!(Kernel_AllocateGlobalInterruptClassRoute(3, &mut attributes)), 0, "{}", last_text());
    assert_eq!(call!(Kernel_AllocateGlobalInterruptClassRoute(3, &mut attributes)), -libc::EBUSY);
    // This node alone: the barrier is complete at once.
    let mut this_node = ClassRoute_t { input: 1, output: 0 };
    assert_eq!(call!(Kernel_SetGlobalInterruptClassRoute(3, &mut this_node)), 0, "{}", last_text());

    let mut barrier = MUSPI_GIBarrier_t { classRouteId: 0, owner: std::ptr::null() };
    assert_eq!(call!(MUSPI_GIBarrierInit(&mut barrier, 3)), 0);
    assert_eq!(call!(MUSPI_GIBarrierInit(&mut barrier, 16)), -libc::EINVAL);
    for _ in 0..3 {
        assert_eq!(call!(MUSPI_GIBarrierEnterAndWaitWithTimeout(&mut barrier, 20 * SECOND)), 0);
    }

    // Both nodes: the other one does not enter.
    assert_eq!(call!(Kernel_SetGlobalInterruptClassRoute(3, &mut route)), 0);
    assert_eq!(call!(MUSPI_GIBarrierEnter(&mut barrier)), 0);
    assert_eq!(call!(MUSPI_GIBarrierPoll(&mut barrier)), -libc::EAGAIN);
    assert_eq!(call!(MUSPI_GIBarrierPollWithTimeout(&mut barrier, SECOND / 100)), -libc::EAGAIN);
    assert_eq!(call!(MUSPI_GIBarrierEnter(&mut barrier)), -libc::EBUSY);

    // A barrier that is prepared again begins anew.
    assert_eq!(call!(Kernel_SetGlobalInterruptClassRoute(3, &mut this_node)), 0, "{}", last_text());
    assert_eq!(call!(MUSPI_GIBarrierInit(&mut barrier, 3)), 0);
    assert_eq!(
        call!(MUSPI_GIBarrierEnterAndWaitWithTimeout(&mut barrier, 20 * SECOND)),
        0,
        "{}",
        last_text()
    );
    assert_eq!(Kernel_DeallocateGlobalInterruptClassRoute(3), 0);
    drop(session);
}

#[test]
fn a_barrier_that_the_unit_refuses_is_an_error() {
    let session = Session::new();
    let mut barrier = MUSPI_GIBarrier_t { classRouteId: 0, owner: std::ptr::null() };
    assert_eq!(call!(MUSPI_GIBarrierInit(&mut barrier, 7)), 0, "{}", last_text());
    assert_eq!(call!(MUSPI_GIBarrierEnter(&mut barrier)), -libc::EACCES);
    assert_eq!(call!(MUSPI_GIBarrierEnterAndWaitWithTimeout(&mut barrier, SECOND / 100)), -libc::EACCES);
    assert_eq!(call!(MUSPI_GIBarrierEnterAndWait(&mut barrier)), -libc::EACCES);
    drop(session);
}

#[test]
fn base_addresses_and_class_routes_that_the_unit_refuses_are_errors() {
    let mut session = Session::new();
    assert_eq!(call!(MUSPI_SetBaseAddress(&mut session.table, 0, 1 << 37)), -libc::EINVAL);
    let mut two_outputs = ClassRoute_t { input: 1, output: 3 << 10 };
    assert_eq!(call!(Kernel_SetGlobalInterruptClassRoute(3, &mut two_outputs)), -libc::EINVAL);
    assert_eq!(call!(Kernel_SetCollectiveClassRoute(3, &mut two_outputs)), -libc::EINVAL);
}

#[test]
fn a_line_of_global_interrupts_is_sent_and_cleared() {
    let session = Session::new();
    let mut route = ClassRoute_t { input: 1, output: 0 };
    assert_eq!(call!(Kernel_SetGlobalInterruptClassRoute(4, &mut route)), 0, "{}", last_text());
    assert_eq!(Kernel_ConfigureGIInterrupts(4, 2, KERNEL_GI_INTERRUPT_FLAG_ENABLE), 0, "{}", last_text());
    assert_eq!(Kernel_ConfigureGIInterrupts(4, 3, KERNEL_GI_INTERRUPT_FLAG_ENABLE), -libc::EINVAL);

    let mut line = MUSPI_GI_t { classRouteId: 0, GIId: 0, owner: std::ptr::null() };
    assert_eq!(call!(MUSPI_GIInit(&mut line, 4, 3)), -libc::EINVAL);
    assert_eq!(call!(MUSPI_GIInit(&mut line, 4, 2)), 0, "{}", last_text());
    assert_eq!(call!(MUSPI_GIPollForArrival(&mut line)), -libc::EAGAIN);
    assert_eq!(call!(MUSPI_GIPollForClear(&mut line)), 0);
    assert_eq!(call!(MUSPI_GISend(&mut line)), 0, "{}", last_text());
    assert_eq!(call!(MUSPI_GIPollForArrivalWithTimeout(&mut line, 60 * SECOND)), 0, "{}", last_text());
    assert_eq!(call!(MUSPI_GISendClear(&mut line)), 0);
    assert_eq!(call!(MUSPI_GIPollForClearWithTimeout(&mut line, 60 * SECOND)), 0, "{}", last_text());

    // A class without a route takes no line.
    assert_eq!(call!(MUSPI_GIInit(&mut line, 5, 0)), 0);
    assert_eq!(call!(MUSPI_GISend(&mut line)), -libc::EACCES);
    assert_eq!(call!(Kernel_SetGlobalInterruptClassRoute(4, &mut ClassRoute_t { input: 0, output: 0 })), 0);
    drop(session);
}

#[test]
fn interrupts_of_fifos_end_a_wait() {
    let mut session = Session::new();
    let (mut fifo, mut of_injection) = (0, Kernel_InjFifoInterrupts_t { Threshold_Crossing: 1 });
    let mut threshold = 15;
    assert_eq!(call!(Kernel_ConfigureInjFifoThresholds(&mut threshold, null_mut())), 0, "{}", last_text());
    assert_eq!(Kernel_ConfigureRecFifoThreshold(1), 0);
    let configured =
        call!(Kernel_ConfigureInjFifoInterrupts(&mut session.injection, 1, &mut fifo, &mut of_injection));
    assert_eq!(configured, 0, "{}", last_text());

    let (mut of_reception, mut other) = (Kernel_RecFifoInterrupts_t::default(), 3);
    let reception = &raw mut session.reception;
    assert_eq!(call!(Kernel_ConfigureRecFifoInterrupts(reception, 1, &mut fifo, &mut of_reception)), 0);
    let missing = call!(Kernel_ConfigureRecFifoInterrupts(reception, 1, &mut other, &mut of_reception));
    assert_eq!(missing, -libc::ENXIO);

    // The FIFO has 16 slots. Room for 15 descriptors rises to 16 when the message is done.
    let expected = NICFORGE_SPI_INTERRUPT_INJECTION;
    let mut come = 0;
    assert_eq!(call!(nicforge_spi_wait_interrupts(0, expected, 0, &mut come)), -libc::EAGAIN);
    let mut info = MUSPI_Pt2PtMemoryFIFODescriptorInfo_t {
        Base: session.base(64),
        Pt2Pt: local_route(),
        MemFIFO: MUSPI_MemoryFIFODescriptorInfoFields_t::default(),
    };
    let mut descriptor = empty_descriptor();
    let created = call!(MUSPI_CreatePt2PtMemoryFIFODescriptor(&mut descriptor, &mut info));
    assert_eq!(created, 0, "{}", last_text());
    session.send(descriptor);
    let waited = call!(nicforge_spi_wait_interrupts(0, expected, 60 * SECOND, &mut come));
    assert_eq!(waited, 0, "{}", last_text());
    assert_eq!(come, expected);
    assert_eq!(call!(nicforge_spi_wait_interrupts(0, expected, 0, &mut come)), -libc::EAGAIN, "cleared");
    assert_eq!(call!(nicforge_spi_wait_interrupts(0, 0, 0, &mut come)), -libc::EINVAL);
}

#[test]
fn null_gives_an_error() {
    let _exclusive = ONE_TEST_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut fifos = [0];
    let list = fifos.as_mut_ptr();
    let results = [
        call!(Kernel_AllocateInjFifos(0, null_mut(), 1, list, null_mut())),
        call!(Kernel_AllocateRecFifos(0, null_mut(), 1, list, null_mut())),
        call!(Kernel_AllocateBaseAddressTable(0, null_mut(), 1, list, 0)),
        call!(Kernel_InjFifoInit(null_mut(), 0, null_mut(), 0, 0)),
        call!(Kernel_RecFifoInit(null_mut(), 0, null_mut(), 0, 0)),
        call!(Kernel_InjFifoActivate(null_mut(), 1, list, 1)),
        call!(Kernel_CreateMemoryRegion(null_mut(), null_mut(), 1)),
        call!(MUSPI_SetBaseAddress(null_mut(), 0, 0)),
        call!(MUSPI_CreatePt2PtRemoteGetDescriptor(null_mut(), null_mut())),
        call!(MUSPI_CreateCollectiveMemoryFIFODescriptor(null_mut(), null_mut())),
        call!(MUSPI_CheckDescComplete(null_mut(), 0)),
        call!(MUSPI_GIBarrierEnter(null_mut())),
        call!(MUSPI_GISend(null_mut())),
        call!(nicforge_spi_wait_interrupts(0, 1, 0, null_mut())),
        call!(Kernel_SetCollectiveClassRoute(0, null_mut())),
    ];
    assert_eq!(results, [-libc::EFAULT; 15]);

    let mut descriptor = empty_descriptor();
    assert_eq!(call!(MUSPI_InjFifoInject(null_mut(), (&raw mut descriptor).cast())), u64::MAX);
    assert_eq!(call!(MUSPI_RecFifoPoll(null_mut(), 1)), 0);
    assert!(call!(MUSPI_IdToInjFifo(0, null_mut())).is_null());
}
