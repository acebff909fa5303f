//! A child process of the benchmark. It reads orders, one in each line, and carries them out.

use std::{
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Cancel, DeviceAddress, OpenOptions};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    sys::signal::Signal,
    unistd::Pid,
};

use super::{
    flow::{self, Endpoint},
    relay::Relay,
    sockets::Listeners,
    task::{Addresses, Answer, FlowTimes, Order, Side, Task},
    tree,
};
use crate::{
    machine, placement,
    process::{carry_out_orders, follow_parent},
};

/// How long the server may take to notice that the previous measurement's client has closed a
/// device.
const DETACH_TIMEOUT: Duration = Duration::from_secs(60);

/// The ends of FCNP or of a socket that an order has opened for a measurement.
enum Open {
    /// This process's end of the path.
    Endpoint(Box<dyn Endpoint + Send>, Task),
    /// The relay between two sockets.
    Relay(Relay, Task),
}

/// State of a child process.
struct Child {
    side: Side,
    listeners: Listeners,
    /// The processors that this process may use at its start.
    anywhere: CpuSet,
    /// Ends the waits of the open endpoint.
    cancel: Cancel,
    open: Option<Open>,
}

/// Runs a child process. `task` is `SIDE:FOLDER`: its side, and the folder for its socket.
pub(super) fn main(task: &str) -> Result<u8, Failure> {
    let (side, folder) = task
        .split_once(':')
        .and_then(|(side, folder)| Some((Side::from_name(side)?, FilePath::new(folder))))
        .ok_or_else(|| Failure::usage("this is for the bench itself"))?;
    follow_parent(Signal::SIGKILL)?;
    let (listeners, addresses) = Listeners::bind(folder.join(side.name()))?;
    let mut child = Child {
        side,
        listeners,
        anywhere: sched_getaffinity(Pid::from_raw(0)).context(|| "which processors there are".into())?,
        cancel: Cancel::new().context(|| "starting".into())?,
        open: None,
    };

    let failed = |message| Answer::Failed { message };
    carry_out_orders(&Answer::Listening(addresses), failed, |order| child.execute(order))
}

impl Child {
    /// Carries an order out, and returns the answer to it.
    fn execute(&mut self, order: Order) -> Result<Answer, Failure> {
        match order {
            Order::Open { task, processor, device: sockets, peer } => {
                self.open = None;
                self.move_to(processor)?;
                self.open = Some(self.open(&task, &sockets, peer.as_ref())?);
                Ok(Answer::Opened)
            }

            Order::Measure => match &mut self.open {
                Some(Open::Endpoint(endpoint, task)) => {
                    Ok(Answer::Done(flow::run(endpoint.as_ref(), self.side, task)?))
                }
                Some(Open::Relay(relay, task)) => {
                    relay.start_threads(task);
                    Ok(Answer::Done(FlowTimes::default()))
                }
                None => Err(Failure::environment("nothing is open")),
            },
            Order::Close => {
                if let Some(Open::Relay(relay, _)) = self.open.take() {
                    relay.close()?;
                }
                Ok(Answer::Closed)
            }
        }
    }

    /// Pins this process to `processor`, or frees it from any processor.
    fn move_to(&self, processor: Option<usize>) -> Result<(), Failure> {
        match processor {
            Some(processor) => placement::pin(processor),
            None => {
                sched_setaffinity(Pid::from_raw(0), &self.anywhere).context(|| "leaving a processor".into())
            }
        }
    }

    /// Opens this process's end of a measurement's path: on the device's `sockets`, or on
    /// connections to `peer`.
    fn open(&self, task: &Task, sockets: &[PathBuf], peer: Option<&Addresses>) -> Result<Open, Failure> {
        if self.side == Side::Relay {
            let peer = peer.ok_or_else(|| Failure::environment("the order names no peer to connect to"))?;
            return Ok(Open::Relay(Relay::open(task, &self.listeners, peer)?, *task));
        }

        let endpoint = if task.path.has_device() {
            let open = |socket: &PathBuf| {
                let address = DeviceAddress::VfioUser(socket.clone());
                machine::open(&address, OpenOptions::default(), DETACH_TIMEOUT)
            };
            let devices = sockets.iter().map(open).collect::<Result<_, _>>()?;
            tree::open(self.side, task, devices, &self.cancel)?
        } else {
            super::sockets::open(self.side, task.path, &self.listeners, peer)?
        };

        Ok(Open::Endpoint(endpoint, *task))
    }
}
