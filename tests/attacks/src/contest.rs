//! One attack on one server, with a polite tenant beside it.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nicforge_vfio_user::wire::Command as Message;

use crate::{
    arena::{Failed, Report, Size},
    attack::Attack,
    client::{self, Client},
    guest,
    polite::{self, TenantObservations},
    server::{End, Server},
};

/// The polite tenant's socket.
const TENANT: &str = "polite.user0";
/// The socket of newcomers, on the polite tenant's card.
const NEWCOMER: &str = "polite.user1";
/// Lifetime of an attacker that is not killed.
const LIFE: Duration = Duration::from_secs(900);
/// Time after which a server that was asked to end is killed.
pub const END_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of the tenant's last round. The server is then asked to end in any case.
const TENANT_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of each reply to a newcomer.
const NEWCOMER_LIMIT: Duration = Duration::from_secs(20);
/// Number of reasons of cut rounds that are kept.
const REASONS: usize = 4;

/// The reports of an attacker.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// Rounds that were carried out completely.
    pub landed: u64,
    /// Rounds that the server cut short.
    pub cut: u64,
    /// The reasons of some cut rounds.
    pub reasons: Vec<String>,
    /// Why the attack is impossible here.
    pub not_run: Option<String>,
    /// How a round harmed an honest peer.
    pub harmed: Option<String>,
}

/// An attacker's process, killed on drop.
#[derive(Debug)]
pub struct Attacker {
    child: Child,
    reports: Arc<Mutex<Reports>>,
    reader: Option<JoinHandle<()>>,
}

impl Attacker {
    /// Starts `program` as the attacker of the machine that is served in `directory`.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(program: &Path, attack: &Attack, size: Size, directory: &Path) -> io::Result<Self> {
        let mut child = Command::new(program)
            .args(["one", attack.name, "--size", size.name()])
            .arg("--dir")
            .arg(directory)
            .args(["--seconds", &LIFE.as_secs().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;

        let reports = Arc::new(Mutex::new(Reports::default()));
        let reader = child.stdout.take().map(|output| {
            let reports = reports.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    note(&mut reports.lock().unwrap_or_else(PoisonError::into_inner), &line);
                }
            })
        });

        Ok(Self { child, reports, reader })
    }

    /// Returns the attacker's reports so far.
    pub fn reports(&self) -> Reports {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks whether the attacker's process has ended. The process ends early only when the attack
    /// cannot continue.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn check_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills the attacker's process. Returns its reports.
    pub fn stop(mut self) -> Reports {
        self.end();
        self.reports()
    }

    /// Kills the attacker's process, and waits for its last reports.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Adds a line of the attacker's output to its reports.
fn note(reports: &mut Reports, line: &str) {
    match Report::parse(line) {
        Some(Report::Landed) => reports.landed += 1,
        Some(Report::Cut(why)) => {
            reports.cut += 1;
            if reports.reasons.len() < REASONS && !reports.reasons.contains(&why) {
                reports.reasons.push(why);
            }
        }
        Some(Report::NotRun(why)) => reports.not_run = Some(why),
        Some(Report::Harmed(why)) => reports.harmed = Some(why),
        None => {}
    }
}

/// The programs and parameters of contests.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The program `nicforge`.
    pub server: PathBuf,
    /// The program of this crate.
    pub attacker: PathBuf,
    /// `epoll` or `io_uring`.
    pub event_loop: &'static str,
    /// The scale of attacks.
    pub size: Size,
    /// The file of the servers' logs, if any.
    pub log: Option<PathBuf>,
    /// If set, the polite tenant is in a guest, for this time.
    pub guest: Option<Duration>,
}

/// A running polite tenant.
pub enum Tenant {
    /// In this process.
    Here(polite::Tenant),
    /// In a guest.
    Guest(Box<guest::Tenant>),
}

impl Tenant {
    /// Starts a tenant of the card behind `socket`.
    fn start(setting: &Setting, socket: &Path) -> Result<Self, Failed> {
        match setting.guest {
            None => Ok(Self::Here(polite::Tenant::start(socket)?)),
            Some(time) => Ok(Self::Guest(Box::new(guest::Tenant::start(&setting.attacker, socket, time)?))),
        }
    }

    /// Returns the tenant's rounds so far; 0 for a tenant in a guest, whose rounds are not known.
    pub fn rounds(&self) -> u64 {
        match self {
            Self::Here(tenant) => tenant.rounds(),
            Self::Guest(_) => 0,
        }
    }
}

/// The result of a contest.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The attacker's reports.
    pub attacker: Reports,
    /// The polite tenant's observations.
    pub tenant: TenantObservations,
    /// The newcomers' observations.
    pub newcomers: NewClients,
    /// How the server ended, with the attacker still present.
    pub end: End,
}

/// Observations of clients that connected during the attack.
#[derive(Clone, Debug, Default)]
pub struct NewClients {
    /// Clients that were served.
    pub served: u64,
    /// Clients that were not served.
    pub failed: u64,
    /// The longest time from a connection to its last reply.
    pub worst: Duration,
}

/// A running server, polite tenant and attacker.
pub struct Contest {
    attacker: Attacker,
    /// Whether the attack lets the kernel keep the server's process after its end.
    kernel_keeps_process: bool,
    tenant: Tenant,
    newcomers: NewClients,
    server: Server,
}

impl Contest {
    /// Starts server, tenant and attacker.
    ///
    /// # Errors
    ///
    /// When one of them cannot be started.
    pub fn start(setting: &Setting, attack: &Attack) -> Result<Self, Failed> {
        let server = setting.serve(attack)?;
        let tenant = Tenant::start(setting, &server.socket(TENANT))?;
        let attacker = Attacker::start(&setting.attacker, attack, setting.size, &server.directory())?;
        let kernel_keeps_process = attack.kernel_keeps_process;
        Ok(Self { attacker, kernel_keeps_process, tenant, newcomers: NewClients::default(), server })
    }

    /// Returns the polite tenant's rounds so far.
    pub fn tenant_rounds(&self) -> u64 {
        self.tenant.rounds()
    }

    /// Returns the attacker's reports so far.
    pub fn reports(&self) -> Reports {
        self.attacker.reports()
    }

    /// Returns whether the attacker has ended by itself.
    ///
    /// # Errors
    /// The system's error.
    pub fn check_attacker_ended(&mut self) -> io::Result<bool> {
        self.attacker.check_ended()
    }

    /// Runs a client that connects, maps memory, and disconnects.
    pub fn newcomer(&mut self) {
        let start = Instant::now();
        match visit(&self.server.socket(NEWCOMER)) {
            Ok(()) => self.newcomers.served += 1,
            Err(_) => self.newcomers.failed += 1,
        }
        self.newcomers.worst = self.newcomers.worst.max(start.elapsed());
    }

    /// Ends the tenant's work, then asks the server to end while the attacker is still present.
    ///
    /// # Errors
    /// The system's error.
    pub fn finish(mut self) -> io::Result<Outcome> {
        let attacker = self.attacker.reports();
        // A tenant in this process may wait for the server, so its thread ends after the server.
        let tenant = match self.tenant {
            Tenant::Here(tenant) => {
                tenant.ask_to_stop(TENANT_LIMIT);
                Ok(tenant)
            }
            Tenant::Guest(tenant) => Err(tenant.stop()),
        };

        let end = self.server.terminate(self.kernel_keeps_process, END_LIMIT)?;

        // A server that has not ended may wait for the attacker, so the attacker ends first.
        drop(self.attacker);
        drop(self.server);

        let tenant = tenant.map_or_else(|observations| observations, polite::Tenant::stop);
        Ok(Outcome { attacker, tenant, newcomers: self.newcomers, end })
    }

    /// Kills the attacker. Returns its reports, and the rest of the contest.
    pub fn without_attacker(self) -> (Reports, AttackOutcome) {
        (self.attacker.stop(), AttackOutcome { tenant: self.tenant, server: self.server })
    }
}

/// A server and its polite tenant after an attack.
pub struct AttackOutcome {
    /// The tenant, still running.
    pub tenant: Tenant,
    /// The server.
    pub server: Server,
}

impl Setting {
    /// Starts the server that `attack` is against.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn serve(&self, attack: &Attack) -> io::Result<Server> {
        let log = if attack.log_is_unread {
            None
        } else {
            let path = self.log.as_deref().unwrap_or(Path::new("/dev/null"));
            Some(File::options().append(true).create(true).open(path)?)
        };

        // A guest's memory must be mapped too. Other attackers have the limit of clients that are
        // not trusted, although they belong to the server's user.
        let maps_large_files = attack.maps_large_files || self.guest.is_some();
        let limit = ["--mapped-limit", if maps_large_files { "8G" } else { "128M" }];
        Server::start(&self.server, self.event_loop, (&limit, attack.environment), log)
    }
}

/// Connects, maps a page, sends a request, and disconnects.
fn visit(socket: &Path) -> io::Result<()> {
    let mut client = Client::connect(socket)?;
    client.set_time_out(NEWCOMER_LIMIT)?;
    client.negotiate(1 << 20)?;
    let file = crate::files::sparse(4096)?;
    client.map_file(0, 4096, &file)?;
    client.ask(Message::DeviceGetInfo, &client::info()).map(drop)
}

/// Runs clients one after another until one is served, at most for `limit`. Returns whether one
/// was.
pub fn is_served(socket: &Path, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if visit(socket).is_ok() {
            return true;
        }
        std::thread::yield_now();
    }

    false
}
