//! A machine with a virtual clock.

use std::ops::{Deref, DerefMut};

use nicforge_core::{
    device::Device,
    fabric::{LinkId, LinkSpec, MAX_FUNCTIONS},
    ids::FunctionId,
    machine::{Machine, Next},
    time::Nanos,
};

use crate::PeerPort;

/// Work budget of each function in a step, in packets.
pub const BUDGET: u32 = 64;
/// Steps after which a machine that is still busy fails the test.
pub const MAX_STEPS: u32 = 200_000;
/// Time between two steps of [`Testbed::run_until`] while the machine polls mapped memory, in
/// nanoseconds.
const POLL_INTERVAL: u64 = 1_000;

/// A machine and the time at which it is stepped.
///
/// Time passes only when the test says so, or when a method waits for the next event. All runs of a
/// test are therefore the same. The testbed derefs to its [`Machine`].
#[derive(Default)]
pub struct Testbed {
    machine: Machine,
    now: Nanos,
    /// Number of ports that tests hold.
    peers: u32,
}

impl Deref for Testbed {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Testbed {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

impl Testbed {
    /// Returns a machine without functions, at time 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device as a function called `name`.
    #[track_caller]
    pub fn add(&mut self, name: &str, device: impl Device + 'static) -> FunctionId {
        self.machine.add_function(name, Box::new(device)).unwrap()
    }

    /// Connects two ports by a link. The default link has two virtual channels of four packets, no
    /// delay, and infinite bandwidth.
    #[track_caller]
    pub fn connect(&mut self, a: (FunctionId, u8), b: (FunctionId, u8), link: LinkSpec) -> LinkId {
        self.machine.fabric().connect(a, b, link).unwrap()
    }

    /// Connects a port to a peer that the test itself is. It needs no second device.
    #[track_caller]
    pub fn peer(&mut self, port: (FunctionId, u8), link: LinkSpec) -> PeerPort {
        // The fabric knows ends without a function. These have the highest numbers.
        self.peers += 1;
        let end = FunctionId(MAX_FUNCTIONS - self.peers);
        PeerPort::new(end, self.connect(port, (end, 0), link))
    }

    /// Returns the current time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Advances the clock, without a step.
    pub fn advance(&mut self, nanoseconds: u64) {
        self.now = self.now.after(nanoseconds);
    }

    /// Advances the clock to `time`, without a step. A time that has passed has no effect.
    pub fn advance_to(&mut self, time: Nanos) {
        self.now = self.now.max(time);
    }

    /// Steps the machine once at the current time.
    pub fn step(&mut self, budget: u32) -> Next {
        self.machine.step(self.now, budget)
    }

    /// Steps at the current time until the machine has nothing to do at once, as [`settle`] does.
    #[track_caller]
    pub fn settle(&mut self) -> Next {
        settle(&mut self.machine, self.now)
    }

    /// Steps the machine, and advances the clock to each arrival on a link, until nothing moves any
    /// more.
    ///
    /// Timers of devices do not fire, because time does not pass for them alone:
    /// [`Testbed::advance`] and [`Testbed::run_until`] let it pass. A test that has memory for DMA
    /// messages answers them between calls.
    ///
    /// # Panics
    /// Fails the test after [`MAX_STEPS`] steps, as when a DMA message waits for its answer.
    #[track_caller]
    pub fn run_until_idle(&mut self) {
        let mut quiet = 0;
        for _ in 0..MAX_STEPS {
            if self.step(BUDGET) == Next::Now {
                quiet = 0;
                continue;
            }

            quiet += 1;
            let next = self.machine.fabric().next_event();
            if next != Nanos::NEVER {
                self.now = next;
            } else if quiet > 1 {
                return;
            }
        }

        panic!("the machine does not come to rest in {MAX_STEPS} steps at {:?}", self.now);
    }

    /// Steps the machine until `condition` holds. The clock advances to each event: an arrival on a
    /// link, and a device's timer to within a microsecond.
    ///
    /// `condition` is called at the start and after each step, and may act on the machine: post,
    /// answer messages, take packets. Mapped memory is polled as if each client had rung its
    /// doorbell.
    ///
    /// # Panics
    /// Fails the test after [`MAX_STEPS`] steps, and when no event can come any more.
    #[track_caller]
    pub fn run_until(&mut self, mut condition: impl FnMut(&mut Self) -> bool) {
        if condition(self) {
            return;
        }

        self.machine.rescan();
        let mut at_rest = false;
        for _ in 0..MAX_STEPS {
            let next = self.step(BUDGET);
            if condition(self) {
                return;
            }

            // The condition may have caused work, so one more step must find none.
            assert!(
                !at_rest || next != Next::At(Nanos::NEVER),
                "the condition does not hold, and nothing more will happen"
            );
            at_rest = next == Next::At(Nanos::NEVER);

            match next {
                Next::Now | Next::At(Nanos::NEVER) => {}
                Next::Poll => {
                    let event = self.machine.fabric().next_event();
                    self.advance_to(event.min(self.now.after(POLL_INTERVAL)));
                }
                Next::At(time) => self.advance_to(time),
            }
        }

        panic!("the condition does not hold after {MAX_STEPS} steps at {:?}", self.now);
    }
}

/// Steps a machine at one time until it has nothing to do at once. Returns the result of the last
/// step.
///
/// # Panics
/// Fails the test after [`MAX_STEPS`] steps.
#[track_caller]
pub fn settle(machine: &mut Machine, now: Nanos) -> Next {
    for _ in 0..MAX_STEPS {
        let next = machine.step(now, BUDGET);
        if next != Next::Now {
            return next;
        }
    }

    panic!("the machine does not come to rest in {MAX_STEPS} steps at {now:?}");
}
