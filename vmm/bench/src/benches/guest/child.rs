//! An end process in a guest or on the host. It reads orders, one in each line, and carries them
//! out.

use std::time::Duration;

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Bar, Cancel, Device, DeviceAddress, OpenOptions, environment};
use nicforge_hwi::proof::dma_engine::REG_COUNT;

use super::{
    super::{
        fcnp::{
            flow::{self, Endpoint},
            sockets,
            task::{Side, Task},
            tree,
        },
        mmio::{
            Contestant,
            interrupt::Irq,
            registers::{Posted, accessing, blocking, contestants},
        },
    },
    effort,
    order::{Access, Answer, Order},
    velo,
};
use crate::{contest::Measurement, machine, process::carry_out_orders};

/// How long the previous client of a device may take to detach.
const DETACH_TIMEOUT: Duration = Duration::from_secs(20);
/// The BAR of the registers.
const REGISTERS: u8 = 0;

/// The state that an order has opened.
enum Open {
    /// The contestants on a device of registers.
    Registers(Vec<Box<dyn Contestant>>),
    /// Registers and a posted-write ring. The parent counts the server's messages and the exits of
    /// the guest that their accesses cause.
    Counted { registers: Bar, posted: Posted },
    /// One side's end of a path of messages.
    Endpoint { side: Side, task: Task, endpoint: Box<dyn Endpoint + Send> },
}

/// Runs a worker.
pub(super) fn main() -> Result<u8, Failure> {
    let mut child = Child {
        devices: environment::devices(environment::SOCKET).context(|| "the bench's devices".into())?,
        cancel: Cancel::new().context(|| "starting".into())?,
        open: None,
    };

    carry_out_orders(&Answer::Ready, |message| Answer::Failed { message }, |order| child.execute(order))
}

/// The state of a worker.
struct Child {
    /// The devices that orders name by their number.
    devices: Vec<DeviceAddress>,
    /// Ends the waits of the open endpoint.
    cancel: Cancel,
    open: Option<Open>,
}

impl Child {
    /// Carries an order out, and returns the answer to it.
    fn execute(&mut self, order: Order) -> Result<Answer, Failure> {
        match order {
            Order::OpenRegisters { first: first_device } => self.open_registers(first_device)?,
            Order::MeasureRegisters { path, quick } => {
                return self.measure_registers(&path, quick).map(Answer::Measurement);
            }

            Order::OpenCounted { device } => self.open_counted(device)?,
            Order::Count { kind, times } => self.access_counted(kind, times)?,
            Order::Check => {
                let Some(Open::Counted { posted, .. }) = &self.open else { return Err(not_open()) };
                posted.check_register()?;
            }

            Order::OpenTree { side, task, device } => {
                let device = self.open_device(device, OpenOptions::default())?;
                let endpoint = tree::open(side, &task, vec![device], &self.cancel)?;
                self.open = Some(Open::Endpoint { side, task, endpoint });
            }
            Order::OpenVelo { side, task, device } => {
                let device = self.open_device(device, OpenOptions::default())?;
                let endpoint = velo::open(side, device, &self.cancel)?;
                self.open = Some(Open::Endpoint { side, task, endpoint });
            }
            Order::OpenTcp { side, task, address } => {
                self.open = Some(Open::Endpoint { side, task, endpoint: sockets::open_tcp(side, address)? });
            }

            Order::Measure => {
                let Some(Open::Endpoint { side, task, endpoint }) = &self.open else {
                    return Err(not_open());
                };
                return Ok(Answer::FlowTimes(flow::run(endpoint.as_ref(), *side, task)?));
            }
            Order::Close => self.open = None,
        }

        Ok(Answer::Done)
    }

    /// Opens three attachments of a device of registers, from number `first` on: one whose waits
    /// poll, one whose waits block, and one for interrupts.
    fn open_registers(&mut self, first: usize) -> Result<(), Failure> {
        let polling_device = self.open_device(first, OpenOptions::default())?;
        let blocking_device = self.open_device(first + 1, blocking())?;
        let interrupt_device = self.open_device(first + 2, blocking())?;

        let mut all = contestants(&polling_device, &blocking_device)?;
        all.push(Box::new(Irq::new(&interrupt_device)?));
        self.open = Some(Open::Registers(all));
        Ok(())
    }

    /// Measures the open contestant with this path once.
    fn measure_registers(&mut self, path: &str, quick: bool) -> Result<Measurement, Failure> {
        let Some(Open::Registers(all)) = &mut self.open else { return Err(not_open()) };
        let contestant = all.iter_mut().find(|contestant| contestant.path() == path);
        contestant.ok_or_else(|| Failure::usage(format!("no path {path}")))?.measure(&effort(quick))
    }

    /// Opens the attachment whose accesses are counted.
    fn open_counted(&mut self, device: usize) -> Result<(), Failure> {
        let device = self.open_device(device, OpenOptions::default())?;
        let registers = accessing(device.bar(REGISTERS))?;
        let posted = Posted::new(&device)?;
        self.open = Some(Open::Counted { registers, posted });
        Ok(())
    }

    /// Makes accesses that are counted.
    fn access_counted(&mut self, kind: Access, times: u32) -> Result<(), Failure> {
        let Some(Open::Counted { registers, posted }) = &mut self.open else { return Err(not_open()) };
        match kind {
            Access::Posted => posted.write(times),
            Access::Read => (0..times).try_for_each(|_| accessing(registers.read32(REG_COUNT)).map(drop)),
            Access::Write => (0..times).try_for_each(|value| accessing(registers.write32(REG_COUNT, value))),
        }
    }

    /// Opens a device whose previous client may still be detaching.
    fn open_device(&self, number: usize, options: OpenOptions) -> Result<Device, Failure> {
        let address = self.devices.get(number);
        let address = address.ok_or_else(|| Failure::environment(format!("there is no device {number}")))?;
        machine::open(address, options, DETACH_TIMEOUT)
    }
}

/// Returns the failure of an order for something that no order has opened.
fn not_open() -> Failure {
    Failure::environment("that is not open")
}
