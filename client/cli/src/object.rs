//! `fence object`: reads and writes through the guard.

mod lanes;

use std::io::Read as _;
use std::path::PathBuf;

use clap::Subcommand;
use fence_client::{Applied, HandedToken, Object};
use fence_protocol::LockName;
use fence_protocol::wire::fence::{FencePage, FenceReply, Guarantee};
use serde::Serialize;

use crate::connect::CallOptions;
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Format, emit};
use fence_terminal::readable::readable;
use fence_terminal::table::{Facts, listing, or_dash, paged_listing};

/// The largest object that is read from a file or stdin, in bytes.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// Reads and writes objects through the guard
///
/// Every operation shows a fencing token: `fence run` puts it into FENCE_HEADER for its command,
/// and `fence lock acquire --output json` prints it as fencing_token.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence run --lock orders/42 -- sh -c 'echo paid | fence object put orders/42'
  fence run --lock orders/42 -- fence object get orders/42
  fence object show orders/42")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Reads an object to stdout
    Get(Get),
    /// Writes an object from stdin or a file
    Put(Put),
    /// Deletes an object
    Delete(Delete),
    /// Raises the mark to this token
    Seal(Seal),
    /// Shows a lock's mark and what was refused
    Show(Show),
    /// Lists marks
    List(List),
    /// Lists lanes in use before an HTTP store, and their quarantines
    Lanes(List),
    /// Ends the quarantine of a lane before an HTTP store
    Resolve(lanes::Resolve),
    /// Makes the quarantine of a lane longer
    Extend(lanes::Extend),
}

#[derive(Clone, Debug, clap::Args)]
struct Presented {
    /// The value of the Fencing-Token header
    #[arg(long, env = "FENCE_HEADER", hide_env_values = true, value_name = "HEADER")]
    token_header: Option<String>,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fence object get orders/42 > order.json
  fence object get orders/42 --output json        the version and the mark, without the bytes
  version=$(fence object get shop/version --default 0) || exit    0 if there is none

Exit code 69 when the guard cannot be reached: then it is not known whether there is one.
Exit code 1 when there is no such object, 77 when the token is stale.")]
struct Get {
    /// The object
    key: String,
    /// Print this where there is no such object, and succeed
    #[arg(long, value_name = "TEXT", conflicts_with = "format")]
    default: Option<String>,
    #[command(flatten)]
    presented: Presented,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  echo paid | fence object put orders/42 --content-type text/plain
  fence object put orders/42 --file order.json --if-match '\"5f…-1\"'

Exit code 77 when the token is stale or the object has another version; nothing was changed then.
Exit code 74 when no reply came: read before you write again.")]
struct Put {
    /// The object
    key: String,
    /// The bytes [default: stdin]
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Content type of the bytes
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Only if the object has this version
    #[arg(long, value_name = "ETAG", conflicts_with = "if_absent")]
    if_match: Option<String>,
    /// Only if there is no object
    #[arg(long)]
    if_absent: bool,
    #[command(flatten)]
    presented: Presented,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence object delete orders/42

Deleting what is not there is a success. Exit code 77 when the token is stale.")]
struct Delete {
    /// The object
    key: String,
    #[command(flatten)]
    presented: Presented,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence run --lock orders/42 -- fence object seal")]
struct Seal {
    /// The lock [default: the token's]
    lock: Option<LockName>,
    #[command(flatten)]
    presented: Presented,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence object show orders/42")]
struct Show {
    /// Name of the lock
    lock: LockName,
    #[command(flatten)]
    call: CallOptions,
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Example:
  fence object list --prefix orders/")]
struct List {
    /// Only names that begin so
    #[arg(long, default_value = "", value_name = "TEXT")]
    prefix: String,
    /// Only names after this one
    #[arg(long, value_name = "NAME")]
    after: Option<LockName>,
    #[command(flatten)]
    call: CallOptions,
}

impl Presented {
    fn token(&self) -> Result<HandedToken, Failure> {
        let header = self.token_header.as_deref().filter(|header| !header.is_empty());
        let header = header.ok_or_else(|| {
            Failure::usage(
                "a fencing token is required: run this under `fence run`, or give --token-header",
            )
        })?;
        Ok(HandedToken::new(header)?)
    }
}

/// Runs the command; returns the exit code.
pub(crate) async fn object(args: Args) -> Result<u8, Failure> {
    match args.command {
        Command::Get(args) => get(args).await,
        Command::Put(args) => put(args).await,
        Command::Delete(args) => {
            let token = args.presented.token()?;
            let client = args.call.client()?;
            let applied = client.objects().delete(&token, &args.key).await?;
            args.call.print(&applied, applied_table)
        }
        Command::Seal(args) => {
            let token = args.presented.token()?;
            let client = args.call.client()?;
            let lock = args.lock.unwrap_or_else(|| token.parsed().lock.clone());
            let reply = client.objects().seal(&token, &lock).await?;
            let table = |reply: &fence_protocol::wire::fence::SealReply| {
                Facts::new().fact("lock", &reply.lock).fact("mark", reply.mark).text()
            };
            args.call.print(&reply, table)
        }
        Command::Show(args) => {
            let reply = args.call.client()?.objects().fence(&args.lock).await?;
            args.call.print(&reply, fence_table)
        }
        Command::List(args) => {
            let client = args.call.client()?;
            let page = client.objects().fences(&args.prefix, args.after.as_ref()).await?;
            args.call.print(&page, page_table)
        }
        Command::Lanes(args) => {
            let client = args.call.client()?;
            let page = client.objects().lanes(&args.prefix, args.after.as_ref()).await?;
            args.call.print(&page, lanes::page_table)
        }
        Command::Resolve(args) => args.run().await,
        Command::Extend(args) => args.run().await,
    }
}

/// Properties of an object, without its bytes.
#[derive(Serialize)]
struct Described<'a> {
    key: &'a str,
    bytes: usize,
    content_type: Option<&'a str>,
    #[serde(flatten)]
    applied: &'a Applied,
}

async fn get(args: Get) -> Result<u8, Failure> {
    let client = args.call.client()?;
    // Without a token the guard says what is required; it may let reads pass.
    let found = match args.presented.token() {
        Ok(token) => client.objects().get(&token, &args.key).await?,
        Err(_) if args.presented.token_header.is_none() => {
            client.objects().get_unfenced(&args.key).await?
        }
        Err(failure) => return Err(failure),
    };
    let Some(Object { body, content_type, applied, .. }) = found else {
        if let Some(text) = args.default {
            return emit(text.as_bytes()).map(|()| code::OK);
        }
        return Err(Failure::new(code::NOTHING, format!("there is no object {}", args.key)));
    };
    if args.call.output.format == Format::Table {
        return emit(&body).map(|()| code::OK);
    }
    let described = Described {
        key: &args.key,
        bytes: body.len(),
        content_type: content_type.as_deref(),
        applied: &applied,
    };
    args.call.print(&described, |_| String::new())
}

async fn put(args: Put) -> Result<u8, Failure> {
    let token = args.presented.token()?;
    let client = args.call.client()?;
    let body = read(args.file)?;
    let mut put = client.objects().put(&token, &args.key, body);
    if let Some(content_type) = &args.content_type {
        put = put.content_type(content_type);
    }
    if let Some(etag) = &args.if_match {
        put = put.if_match(etag);
    }
    if args.if_absent {
        put = put.if_absent();
    }
    let applied = put.await?;
    args.call.print(&applied, applied_table)
}

/// The whole body, before anything is sent: a write that breaks off halfway is no write.
fn read(file: Option<PathBuf>) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    let (what, read) = match file {
        Some(path) => {
            let opened = std::fs::File::open(&path);
            let read = opened.and_then(|file| file.take(BODY_BYTES_MAX + 1).read_to_end(&mut body));
            (path.display().to_string(), read)
        }
        None => {
            let stdin = std::io::stdin().lock();
            ("stdin".to_owned(), stdin.take(BODY_BYTES_MAX + 1).read_to_end(&mut body))
        }
    };
    let bytes = read.map_err(|error| Failure::usage(format!("{what} cannot be read: {error}")))?;
    if bytes as u64 > BODY_BYTES_MAX {
        return Err(Failure::usage(format!("{what} is longer than {BODY_BYTES_MAX} bytes")));
    }
    Ok(body)
}

fn applied_table(applied: &Applied) -> String {
    Facts::new()
        .fact("mark", or_dash(applied.mark))
        .fact("guarantee", or_dash(applied.guarantee.map(Guarantee::as_str)))
        .fact("etag", or_dash(applied.etag.as_ref()))
        .text()
}

fn fence_table(reply: &FenceReply) -> String {
    let text = Facts::new()
        .fact("lock", &reply.lock)
        .fact("mark", or_dash(reply.mark))
        .fact("lease_id", or_dash(reply.lease_id))
        .fact("guarantee", reply.guarantee.as_str())
        .fact("refused", reply.refused_total)
        .text();
    if reply.last_refusals.is_empty() {
        return text;
    }
    let rows = reply.last_refusals.iter().map(|refusal| {
        [
            refusal.token.to_string(),
            refusal.mark.to_string(),
            refusal.code.clone(),
            refusal.operation.clone(),
            or_dash(refusal.owner.as_ref()),
            format!("{} ago", readable(refusal.ms_ago)),
        ]
    });
    format!("{text}\n{}", listing(["TOKEN", "MARK", "REFUSED", "OPERATION", "OWNER", "WHEN"], rows))
}

fn page_table(fences: &FencePage) -> String {
    let rows = fences
        .fences
        .iter()
        .map(|line| [line.lock.to_string(), line.mark.to_string(), line.refused_total.to_string()]);
    paged_listing(["LOCK", "MARK", "REFUSED"], rows, fences.next_after.as_ref())
}
