//! A virtual machine: configuration, making, running, and its end.

use std::{io::Write, path::PathBuf, sync::Arc, time::Duration};

use kvm_ioctls::{Kvm, VcpuFd, VmFd};

pub use crate::power::End;
use crate::{
    boot::{self, Images, Software},
    error::VmError,
    exits::Exits,
    function::Function,
    hypervisor::KvmMachine,
    layout::{IDENTITY_MAP, SERIAL_PORTS, TSS},
    memory::Ram,
    ports::Devices,
    processor,
    serial::SerialPort,
    vcpu::Vcpu,
};

/// Most processors of a machine.
const MOST_PROCESSORS: u8 = 64;

/// The configuration of a virtual machine.
#[derive(Clone, Debug)]
pub struct VmConfig {
    software: Software,
    memory: u64,
    processors: u8,
}

impl VmConfig {
    /// Returns a machine with one processor and 256 MiB of RAM. It starts an unpacked kernel
    /// (`vmlinux`) by its PVH entry, or a bzImage (`vmlinuz`) by Linux's boot protocol. A bzImage
    /// takes longer, because it unpacks itself.
    pub fn new(kernel: impl Into<PathBuf>) -> Self {
        let software = Software { kernel: kernel.into(), initrd: None, command_line: String::new() };
        Self { software, memory: 256 << 20, processors: 1 }
    }

    /// Sets the initramfs.
    pub fn initrd(mut self, path: impl Into<PathBuf>) -> Self {
        self.software.initrd = Some(path.into());
        self
    }

    /// Sets the kernel's command line.
    pub fn command_line(mut self, text: impl Into<String>) -> Self {
        self.software.command_line = text.into();
        self
    }

    /// Sets the size of the RAM in bytes, a multiple of 4096.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets the number of processors, from 1 to 64.
    pub fn processors(mut self, number: u8) -> Self {
        self.processors = number;
        self
    }
}

/// The parts of a machine that outlive a restart. Their files stay open, because a confined process
/// can open none for a restart.
#[derive(Clone)]
struct Lasting {
    kvm: Arc<Kvm>,
    config: VmConfig,
    ram: Ram,
    /// The software's open files, from the machine's first start on.
    images: Option<Arc<Images>>,
}

/// A virtual machine that has not started.
pub struct Vm {
    lasting: Lasting,
    vm: Arc<VmFd>,
    processors: Vec<VcpuFd>,
    devices: Devices,
}

impl Vm {
    /// Makes a machine without functions.
    ///
    /// # Errors
    /// [`VmError::NoKvm`], [`VmError::Kvm`], [`VmError::Memory`], [`VmError::Request`].
    pub fn new(config: &VmConfig) -> Result<Self, VmError> {
        if !(1..=MOST_PROCESSORS).contains(&config.processors) {
            let text = format!("{} processors: a machine has 1 to {MOST_PROCESSORS}", config.processors);
            return Err(VmError::Request(text));
        }

        let kvm = Arc::new(Kvm::new().map_err(VmError::NoKvm)?);
        let ram = Ram::new(config.memory)?;
        Self::with_parts(Lasting { kvm, config: config.clone(), ram, images: None })
    }

    /// Makes a machine of KVM without functions. All bytes of its RAM must be 0.
    fn with_parts(lasting: Lasting) -> Result<Self, VmError> {
        let Lasting { kvm, config, ram, .. } = &lasting;
        let vm = Arc::new(kvm.create_vm().map_err(VmError::kvm("a virtual machine"))?);
        vm.set_identity_map_address(IDENTITY_MAP).map_err(VmError::kvm("the identity map"))?;
        vm.set_tss_address(TSS).map_err(VmError::kvm("the task state"))?;

        // KVM must have its interrupt controllers, which `KvmMachine::new` makes, before
        // processors.
        let devices = Devices::new(Arc::new(KvmMachine::new(vm.clone())?), ram)?;
        let processors = (0..config.processors)
            .map(|number| vm.create_vcpu(number.into()).map_err(VmError::kvm("a processor")))
            .collect::<Result<_, _>>()?;
        Ok(Self { lasting, vm, processors, devices })
    }

    /// Sends the output of a serial port, 0 to 2, to a writer. The guest waits for each write.
    ///
    /// # Errors
    /// [`VmError::Request`] when there is no such port.
    pub fn serial(&mut self, port: usize, output: Box<dyn Write + Send>) -> Result<(), VmError> {
        let count = SERIAL_PORTS.len();
        let port = self.devices.serial.get(port);
        let port = port.ok_or_else(|| VmError::Request(format!("a machine has {count} serial ports")))?;
        port.set_output(output);
        Ok(())
    }

    /// Puts a function into a slot of the bus, 0 to 31, and gives it the RAM for DMA.
    ///
    /// # Errors
    /// [`VmError::Request`] when the slot is not free, [`VmError::Function`].
    pub fn plug(&mut self, slot: u8, function: Arc<dyn Function>) -> Result<(), VmError> {
        self.devices.plug(slot, function, &self.lasting.ram)
    }

    /// Returns the RAM.
    pub fn ram(&self) -> &Ram {
        &self.lasting.ram
    }

    /// Loads the kernel and starts the processors.
    ///
    /// # Errors
    /// [`VmError`]
    pub fn start(self) -> Result<Running, VmError> {
        let Self { mut lasting, vm, processors, devices } = self;
        let Lasting { kvm, config, ram, images } = &mut lasting;
        let images = match images {
            Some(images) => images,
            None => images.insert(Arc::new(Images::open(&config.software)?)),
        };

        let entry = boot::load(ram, images, &config.software.command_line, config.processors)?;
        for (number, vcpu) in (0..).zip(&processors) {
            processor::set_features(kvm, vcpu, number)?;
        }
        // The guest's kernel starts the other processors.
        if let Some(first) = processors.first() {
            processor::set_entry(first, entry)?;
        }

        let devices = Arc::new(devices);
        let mut running = Running { vcpus: Vec::new(), devices, lasting, _vm: vm };
        for (number, vcpu) in (0..).zip(processors) {
            let vcpu = Vcpu::start(vcpu, number, running.devices.clone())?;
            running.vcpus.push(vcpu);
        }
        Ok(running)
    }
}

/// A running machine. It is stopped on drop.
pub struct Running {
    // Fields are dropped in this order: the processors' threads end before their memory is gone.
    vcpus: Vec<Vcpu>,
    devices: Arc<Devices>,
    lasting: Lasting,
    _vm: Arc<VmFd>,
}

impl Running {
    /// Waits for the machine's end, at most for `limit`. `None` is a machine that still runs.
    ///
    /// The other processors of a machine that has ended may go on until [`Self::stop`].
    pub fn wait(&self, limit: Duration) -> Option<End> {
        self.devices.power.wait(limit)
    }

    /// Sends bytes to a serial port, 0 to 2. Returns the number of bytes that were taken: fewer
    /// than all when the guest does not read.
    pub fn send(&self, port: usize, bytes: &[u8]) -> usize {
        self.devices.send(port, bytes)
    }

    /// Returns the number of exits so far.
    pub fn exits(&self) -> Exits {
        self.devices.exits.read()
    }

    /// Stops the machine, and waits for its processors. Returns why it ended.
    pub fn stop(mut self) -> End {
        self.shut_down();
        self.devices.power.ended().unwrap_or(End::Stopped)
    }

    /// Starts the machine anew, as the reset of a computer does. It has the same functions, which
    /// are reset, RAM whose bytes are all 0, and the same software, read again from its files. The
    /// serial ports keep their destinations. The counts of exits begin at 0.
    ///
    /// A machine that still runs is stopped first.
    ///
    /// # Errors
    /// [`VmError`]. The machine is gone then.
    pub fn restart(mut self) -> Result<Self, VmError> {
        self.shut_down();
        let functions = self.devices.bus.functions();
        for (slot, function) in &functions {
            let reset = function.release_vectors().and_then(|()| function.reset());
            reset.map_err(|error| VmError::Function { slot: *slot, error })?;
        }

        // The RAM is cleared after the resets: a function that has been reset writes to it no more.
        self.lasting.ram.clear()?;
        let outputs = self.devices.serial.each_ref().map(SerialPort::take_output);
        let lasting = self.lasting.clone();
        drop(self);

        let mut vm = Vm::with_parts(lasting)?;
        for (port, output) in outputs.into_iter().enumerate() {
            vm.serial(port, output)?;
        }
        for (slot, function) in functions {
            vm.plug(slot, function)?;
        }
        vm.start()
    }

    /// Ends the machine if it still runs, and waits for its processors.
    fn shut_down(&mut self) {
        self.devices.power.end(End::Stopped);
        self.vcpus.drain(..).for_each(Vcpu::join);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shut_down();
    }
}
