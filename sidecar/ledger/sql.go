package ledger

// The SQL of the ledger, all of it: portable to PostgreSQL but for the form of the triggers and the placeholders.
// No rowid, no INSERT OR REPLACE, no functions of JSON or dates, no PRAGMA (those are in open.go).

// schemaVersion is PRAGMA user_version. applicationID says whose file it is ("EDAL").
const (
	schemaVersion = 1
	applicationID = 0x4544414c
)

// schema is version 1. body is TEXT so that auditors can read it with any client; the chain is over its bytes.
// An index costs a page a commit, so kind has none.
const schema = `
CREATE TABLE meta (k TEXT NOT NULL PRIMARY KEY, v TEXT NOT NULL);
CREATE TABLE jobs (
  id TEXT NOT NULL PRIMARY KEY, session TEXT NOT NULL, tool TEXT NOT NULL, principal TEXT NOT NULL,
  phase TEXT NOT NULL CHECK (phase IN ('worker_running', 'publishing_outputs', 'committed', 'rolled_back')),
  doc TEXT NOT NULL, first_seq BIGINT NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
  settled_at BIGINT, retired_at BIGINT);
CREATE INDEX jobs_session ON jobs (session);
CREATE INDEX jobs_unretired ON jobs (id) WHERE retired_at IS NULL;
CREATE TABLE sessions (
  id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, generation BIGINT NOT NULL, job TEXT NOT NULL,
  state TEXT NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, destroyed_at BIGINT);
CREATE UNIQUE INDEX sessions_name ON sessions (owner, name) WHERE destroyed_at IS NULL AND name <> '';
CREATE TABLE events (
  seq INTEGER NOT NULL PRIMARY KEY, job TEXT, session TEXT, kind TEXT NOT NULL, tool TEXT, principal TEXT,
  at BIGINT NOT NULL, body TEXT NOT NULL, hash BLOB NOT NULL);
CREATE INDEX events_job ON events (job);
CREATE INDEX events_session ON events (session);
CREATE INDEX events_at ON events (at);
INSERT INTO meta VALUES ('epoch', '0'), ('pruned_seq', '0'), ('pruned_hash', ''), ('agent', '');
`

// triggers refuse what the code never does: one that fires is a bug, and still only a rollback.
const triggers = `
CREATE TRIGGER events_no_update BEFORE UPDATE ON events
  BEGIN SELECT RAISE(ABORT, 'an event is never changed'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events
  WHEN OLD.seq > (SELECT CAST(v AS BIGINT) FROM meta WHERE k = 'pruned_seq')
  BEGIN SELECT RAISE(ABORT, 'an event above pruned_seq is never deleted'); END;
CREATE TRIGGER jobs_final BEFORE UPDATE OF phase, doc ON jobs
  WHEN OLD.phase IN ('committed', 'rolled_back')
  BEGIN SELECT RAISE(ABORT, 'a final phase never changes'); END;
CREATE TRIGGER jobs_no_delete BEFORE DELETE ON jobs
  WHEN OLD.retired_at IS NULL
  BEGIN SELECT RAISE(ABORT, 'a job that is not retired is never deleted'); END;
CREATE TRIGGER sessions_generation BEFORE UPDATE ON sessions
  WHEN NEW.generation <> OLD.generation + 1
  BEGIN SELECT RAISE(ABORT, 'a generation follows its predecessor'); END;
CREATE TRIGGER sessions_tombstone BEFORE UPDATE ON sessions
  WHEN OLD.destroyed_at IS NOT NULL
  BEGIN SELECT RAISE(ABORT, 'a destroyed session never changes'); END;
CREATE TRIGGER sessions_no_delete BEFORE DELETE ON sessions
  WHEN OLD.destroyed_at IS NULL
  BEGIN SELECT RAISE(ABORT, 'only a tombstone is deleted'); END;
`

// Written by the store.
const (
	sqlEpoch     = `SELECT v FROM meta WHERE k = 'epoch'`
	sqlHead      = `SELECT m.v, COALESCE(e.seq, 0), e.hash FROM meta m LEFT JOIN events e ON e.seq = (SELECT MAX(seq) FROM events) WHERE m.k = 'epoch'`
	sqlWorkspace = `SELECT v FROM meta WHERE k = 'workspace_id'`
	sqlClaim     = `INSERT INTO meta VALUES ('workspace_id', ?)`
	sqlMeta      = `UPDATE meta SET v = ? WHERE k = ?`
	sqlEvent     = `INSERT INTO events (seq, job, session, kind, tool, principal, at, body, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlBegin     = `INSERT INTO jobs (id, session, tool, principal, phase, doc, first_seq, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlPhase     = `UPDATE jobs SET phase = 'publishing_outputs', doc = ?, updated_at = ? WHERE id = ? AND phase = 'worker_running'`
	sqlCommit    = `UPDATE jobs SET phase = 'committed', updated_at = ? WHERE id = ? AND phase = 'publishing_outputs'`
	sqlUndone    = `UPDATE jobs SET phase = 'rolled_back', updated_at = ?, settled_at = ? WHERE id = ? AND phase IN ('worker_running', 'publishing_outputs')`
	sqlSettle    = `UPDATE jobs SET settled_at = ? WHERE id = ? AND phase = 'committed' AND settled_at IS NULL`
	sqlRetire    = `UPDATE jobs SET retired_at = ? WHERE id = ? AND settled_at IS NOT NULL AND retired_at IS NULL`
	sqlInsert    = `INSERT INTO sessions (id, owner, name, generation, job, state, created_at, updated_at) VALUES (?, ?, ?, 1, ?, ?, ?, ?)`
	sqlUpdate    = `UPDATE sessions SET generation = generation + 1, job = ?, state = ?, updated_at = ?, destroyed_at = ? WHERE id = ? AND generation = ? AND destroyed_at IS NULL`

	sqlPruneJobs   = `DELETE FROM jobs WHERE retired_at IS NOT NULL AND id IN (SELECT job FROM events WHERE seq <= ?) AND NOT EXISTS (SELECT 1 FROM events e WHERE e.job = jobs.id AND e.seq > ?)`
	sqlPruneEvents = `DELETE FROM events WHERE seq <= ?`
	sqlPruneTombs  = `DELETE FROM sessions WHERE destroyed_at < ?`
)

// Read, in part with conditions behind.
const (
	sqlJobs     = `SELECT id, session, tool, principal, phase, doc, first_seq, created_at, updated_at, settled_at, retired_at FROM jobs WHERE `
	sqlSessions = `SELECT id, owner, name, generation, job, state, created_at, updated_at, destroyed_at FROM sessions WHERE `
	sqlEvents   = `SELECT seq, COALESCE(job, ''), COALESCE(session, ''), kind, COALESCE(tool, ''), COALESCE(principal, ''), at, body, hash, (SELECT p.hash FROM events p WHERE p.seq = events.seq - 1), EXISTS (SELECT 1 FROM jobs WHERE id = events.job), EXISTS (SELECT 1 FROM sessions WHERE id = events.session) FROM events WHERE `
	sqlHashOf   = `SELECT hash FROM events WHERE seq = ?`
	sqlPhases   = `SELECT id, phase, first_seq, (SELECT COUNT(*) FROM events e WHERE e.job = jobs.id AND e.kind = 'commit'), (SELECT COUNT(*) FROM events e WHERE e.job = jobs.id AND e.kind = 'rollback'), CASE WHEN retired_at IS NULL THEN doc END FROM jobs WHERE id > ? ORDER BY id LIMIT ?`
	sqlLast     = `SELECT body FROM events WHERE session = ? AND kind = 'commit' ORDER BY seq DESC LIMIT 1`
	sqlSchema   = `SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*' ORDER BY name`
	sqlClaims   = `SELECT id, job, generation, state, (SELECT body FROM events e WHERE e.session = sessions.id AND e.kind = 'commit' ORDER BY seq DESC LIMIT 1) FROM sessions WHERE id > ? ORDER BY id LIMIT ?`

	// + keeps the index on at out of it: at most pruneMax rows are looked at.
	sqlHorizon = `SELECT
	(SELECT COALESCE(MIN(seq), 9223372036854775807) FROM events WHERE seq > ? AND seq <= ? AND +at >= ?),
	(SELECT COALESCE(MIN(first_seq), 9223372036854775807) FROM jobs WHERE retired_at IS NULL),
	(SELECT COALESCE(MAX(seq), 0) FROM events),
	(SELECT COUNT(*) FROM sessions WHERE destroyed_at < ?)`
)
