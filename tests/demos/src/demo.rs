//! `fence demo`: what goes wrong without a fence, and right with one, shown by real processes.
//!
//! A demo needs nothing but this program: it starts itself again as lock server, guard and workers
//! (see [`crate::internal`]), on ports of the system's choice and in a temporary folder. The
//! director (this module and the stories) gives orders over pipes, stops and resumes processes, and
//! prints what replies say. Each line comes from a reply, a report or a file. The JSON document of
//! `--json` is described at the module `record`.

mod account;
mod actor;
mod datastore;
mod delayed_write;
mod gc_stall;
mod late_write;
mod narrator;
mod orders;
mod record;
mod redis_amnesia;
mod report;
mod stage;
mod stampede;
mod verdict;
pub(crate) mod worker;

use std::path::PathBuf;

use clap::ValueEnum;
use service_kit::signals;

use self::late_write::Delay;
use self::narrator::Narrator;
use self::record::Record;
use crate::backing::Backing;
use crate::own_postgres::OwnPostgres;
use crate::own_redis::OwnRedis;
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{emit, say};

/// SIGINT, for the exit code of a demo that was interrupted.
const INTERRUPT: u8 = 2;

/// Shows what a stalled, slow or forgotten lock holder does to data, unguarded and guarded
///
/// Real processes on this machine, a few seconds each; nothing has to be running. A story that does
/// not end as expected is an error.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence demo list
  fence demo gc-stall                                   the one to begin with
  fence demo gc-stall --out gc-stall.html               with a picture for the browser
  fence demo gc-stall --store http                      a plain HTTP server behind the reverse proxy
  fence demo gc-stall --store redis                     Redis drivers through the guard's Redis port
  fence demo gc-stall --store redis://127.0.0.1:6379    the same on your Redis; leaves nothing there
  fence demo gc-stall --store postgres                  a transaction through the PostgreSQL port
  fence demo gc-stall --store postgres://postgres@127.0.0.1:5432/postgres
                                                        in a database that is dropped at the end
  fence demo stampede --json

Exit codes: 0 both stories ended as expected, 1 one did not, 64 wrong usage, 69 something that
the demo needs is not there, 70 the demo broke off, 130 interrupted")]
pub struct Args {
    /// Name of the demo
    #[arg(value_enum, default_value_t = Which::List)]
    which: Which,

    /// embedded, http (gc-stall: the demo's own datastore), redis (the demo's own),
    /// redis://HOST:PORT, in a namespace that is deleted at the end, or for gc-stall postgres (the
    /// demo's own) or postgres://USER@HOST:PORT/DATABASE, whose USER may create databases and roles
    /// [default: embedded]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Write the timeline as one HTML page
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Print one JSON document, not the narration
    #[arg(long)]
    json: bool,

    /// Let redis-amnesia empty the Redis of --store: all its data is lost
    #[arg(long)]
    allow_flush: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Names the demos
    List,
    /// A worker is stopped between read and write, longer than its lease lasts
    GcStall,
    /// A slow write is in flight when the lease passes on
    LeaseOverlap,
    /// An old write is on its way to a plain HTTP store while the new one arrives
    DelayedWrite,
    /// Redis is emptied while a lease is held
    RedisAmnesia,
    /// A hundred workers count one number down
    Stampede,
}

impl Which {
    fn title(self) -> (&'static str, &'static str) {
        match self {
            Self::List => ("", ""),
            Self::GcStall => (gc_stall::TITLE, gc_stall::EXPLANATION),
            Self::LeaseOverlap => (late_write::OVERLAP_TITLE, late_write::OVERLAP_EXPLANATION),
            Self::DelayedWrite => (delayed_write::TITLE, delayed_write::EXPLANATION),
            Self::RedisAmnesia => (redis_amnesia::TITLE, redis_amnesia::EXPLANATION),
            Self::Stampede => (stampede::TITLE, stampede::EXPLANATION),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::GcStall => "gc-stall",
            Self::LeaseOverlap => "lease-overlap",
            Self::DelayedWrite => "delayed-write",
            Self::RedisAmnesia => "redis-amnesia",
            Self::Stampede => "stampede",
        }
    }
}

/// Runs one demo; returns the exit code.
pub async fn demo(args: Args) -> Result<u8, Failure> {
    if args.which == Which::List {
        return list();
    }
    check_flush(&args)?;
    check_gc_stall(&args)?;
    check_out(&args)?;
    let (own_redis, own_postgres) = tokio::select! {
        started = own_stores(&args) => started?,
        () = signals::terminated() => return Err(interrupted()),
    };
    let own = own_redis.as_ref().map(OwnRedis::url);
    let own = own.or(own_postgres.as_ref().map(OwnPostgres::url));
    let backing = Backing::from_flag(own.or(args.store.as_deref()))?;
    backing.check().await?;
    let (title, explanation) = args.which.title();
    let name = args.which.name();
    let mut narrator = Narrator::new(name, title, explanation, &backing.name(), args.json)?;
    // The story kills its processes when it is dropped, also when it is interrupted.
    let ended = tokio::select! {
        ended = run(&args, &mut narrator, &backing) => ended,
        () = signals::terminated() => Err(interrupted()),
    };
    let cleaned = backing.clean().await;
    if let Some(redis) = own_redis {
        redis.end().await;
    }
    if let Some(postgres) = own_postgres {
        postgres.end().await;
    }
    ended?;
    cleaned?;
    finish(&args, &narrator.record())
}

async fn own_stores(args: &Args) -> Result<(Option<OwnRedis>, Option<OwnPostgres>), Failure> {
    if args.store.as_deref() == Some("postgres") {
        return Ok((None, Some(OwnPostgres::start().await?)));
    }
    Ok((own_redis(args).await?, None))
}

/// Starts a Redis for `--store redis`, and for redis-amnesia unless it was given one to empty.
async fn own_redis(args: &Args) -> Result<Option<OwnRedis>, Failure> {
    let instead = match (args.which, args.store.as_deref()) {
        (Which::RedisAmnesia, None | Some("redis")) => {
            "name one that may be emptied with --store redis://HOST:PORT --allow-flush"
        }
        (_, Some("redis")) => "name one with --store redis://HOST:PORT",
        _ => return Ok(None),
    };
    OwnRedis::start(instead).await.map(Some)
}

fn interrupted() -> Failure {
    Failure::new(code::SIGNAL_BASE + INTERRUPT, "the demo was interrupted")
}

/// Only redis-amnesia empties a Redis, and one of the user's only where that was said.
fn check_flush(args: &Args) -> Result<(), Failure> {
    let is_amnesia = args.which == Which::RedisAmnesia;
    match args.store.as_deref() {
        Some(store @ ("embedded" | "http" | "postgres")) if is_amnesia => {
            Err(Failure::usage(format!("redis-amnesia needs a Redis: leave out --store {store}")))
        }
        Some(store) if is_amnesia && store != "redis" && !args.allow_flush => Err(Failure::usage(
            "redis-amnesia empties the Redis that --store names (FLUSHALL): everything in it would \
             be lost. Add --allow-flush if that is what you want, or leave out --store",
        )),
        None | Some("redis") if is_amnesia && args.allow_flush => {
            Err(Failure::usage("--allow-flush is for the Redis that --store names"))
        }
        _ if !is_amnesia && args.allow_flush => {
            Err(Failure::usage("--allow-flush is for redis-amnesia alone"))
        }
        _ => Ok(()),
    }
}

/// The others write objects of the guard, or start their own datastore.
fn check_gc_stall(args: &Args) -> Result<(), Failure> {
    let store = args.store.as_deref().map(|store| store.split("://").next().unwrap_or(store));
    match store {
        Some(store @ ("http" | "postgres")) if args.which != Which::GcStall => {
            Err(Failure::usage(format!(
                "--store {store} is for gc-stall alone: leave it out, or run fence demo gc-stall"
            )))
        }
        _ => Ok(()),
    }
}

/// A report that could never be written is refused before anything is started.
fn check_out(args: &Args) -> Result<(), Failure> {
    let Some(out) = &args.out else { return Ok(()) };
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
    if out.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        let message = format!("--out {}: name a file in a folder that exists", out.display());
        return Err(Failure::usage(message));
    }
    Ok(())
}

async fn run(args: &Args, narrator: &mut Narrator, backing: &Backing) -> Result<(), Failure> {
    match args.which {
        Which::List => Ok(()),
        Which::GcStall => gc_stall::run(narrator, backing).await,
        Which::LeaseOverlap => late_write::on_objects(narrator, backing, Delay::HalfSent).await,
        Which::DelayedWrite => delayed_write::run(narrator, backing).await,
        Which::RedisAmnesia => redis_amnesia::run(narrator, backing).await,
        Which::Stampede => stampede::run(narrator, backing).await,
    }
}

fn finish(args: &Args, record: &Record) -> Result<u8, Failure> {
    if let Some(out) = &args.out {
        std::fs::write(out, report::page(record)).map_err(|error| {
            let message = format!("the report cannot be written to {}: {error}", out.display());
            Failure::new(code::UNAVAILABLE, message)
        })?;
        say(&format!("The timeline is in {}.", out.display()));
    }
    if args.json {
        let mut json = serde_json::to_vec_pretty(record)
            .map_err(|error| Failure::internal(format!("no JSON: {error}")))?;
        json.push(b'\n');
        emit(&json)?;
    } else {
        let ends = record.stories.iter().map(|story| {
            let end = if story.ok { "as expected" } else { "NOT as expected" };
            format!("{} {end}", story.name)
        });
        let ends: Vec<_> = ends.collect();
        emit(format!("{} ended: {}\n", record.demo, ends.join(", ")).as_bytes())?;
        if args.out.is_none() {
            emit(b"A picture of it: the same command with --out report.html\n")?;
        }
    }
    Ok(if record.ok { code::OK } else { code::NOTHING })
}

fn list() -> Result<u8, Failure> {
    let rows = Which::value_variants().iter().filter_map(|which| {
        let value = which.to_possible_value()?;
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        Some([value.get_name().to_owned(), help])
    });
    emit(fence_terminal::table::listing(["DEMO", "WHAT HAPPENS"], rows.skip(1)).as_bytes())?;
    Ok(code::OK)
}
