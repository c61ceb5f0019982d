// A workspace with the counter of examples/, the built program on it, and what the machine says about a job's processes.
import assert from 'node:assert/strict';
import { execFile, spawn, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { promisify } from 'node:util';

export const root = process.env.EDA_ROOT;
export const bin = join(root, 'bin/eda-sidecar');
export const here = import.meta.dirname;

const undo = [];
after(async () => {
	while (undo.length > 0) await undo.pop()();
});

/** Does f after the tests, the last one first. */
export const atEnd = (f) => undo.push(f);

/** Starts a program that does not outlive this process, however it ends, and tells how the program ended. */
export function start(command, args, options) {
	const child = spawn('setpriv', ['--pdeathsig', 'KILL', command, ...args], options);
	return { child, ended: new Promise((resolve) => child.on('error', resolve).on('exit', (code, signal) => resolve(code ?? signal))) };
}

/** A copy of examples/counter. */
export function workspace() {
	const dir = mkdtempSync(join(process.env.EDA_SCRATCH, 'ws-'));
	cpSync(join(root, 'examples/counter'), dir, { recursive: true });
	return dir;
}

/** The program as an HTTP server; it must end well after the tests. */
export async function serve(dir, ...args) {
	const { child, ended } = start(bin, ['serve', '--workspace', dir, '--listen', '127.0.0.1:0', '--metrics-listen', '127.0.0.1:0', ...args], { stdio: ['ignore', 'inherit', 'pipe'] });
	atEnd(async () => {
		child.kill();
		assert.equal(await ended, 0, 'exit status of the server');
	});
	for await (const line of createInterface({ input: child.stderr })) {
		const [, url] = JSON.parse(line).msg.split('serving on ');
		if (!url) continue;
		child.stderr.resume();
		const token = join(dir, '.eda-sidecar/state/token');
		return { url, token: existsSync(token) ? readFileSync(token, 'utf8').trim() : undefined };
	}
	throw new Error('the server ended before it served');
}

/** Runs a command to its end, at most a minute. Never fails: the status is in the answer. */
export async function run(command, args, options = {}) {
	try {
		const { stdout, stderr } = await promisify(execFile)(command, args, { timeout: 60_000, maxBuffer: 64 << 20, ...options });
		return { status: 0, stdout, stderr };
	} catch (error) {
		return { status: error.code ?? error.signal, stdout: error.stdout, stderr: error.stderr };
	}
}

/** Waits for what others bring about, at most 20 s, and returns it. */
export async function until(what, condition) {
	for (const end = Date.now() + 20_000; Date.now() < end; await pause(10)) {
		const got = await condition();
		if (got) return got;
	}
	throw new Error(`timed out: ${what}`);
}

const read = (file) => {
	try {
		return readFileSync(file, 'utf8');
	} catch {
		return ''; // of a process that is gone
	}
};

/** The living processes in a job's groups, as the kernel has them. */
export function processes(job) {
	return readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && read(`/proc/${pid}/cgroup`).includes(job)).map((pid) => read(`/proc/${pid}/comm`).trim());
}

/** The job's groups that are left in any cgroup2 hierarchy. */
export function groups(job) {
	const mounts = read('/proc/self/mountinfo').split('\n').filter((line) => line.includes(' - cgroup2 ')).map((line) => line.split(' ')[4]);
	assert.ok(mounts.length > 0, 'no cgroup2 is mounted');
	const { stdout } = spawnSync('find', [...mounts, '-name', `*${job}*`]); // others may vanish meanwhile, and its status tells of that
	return stdout.toString().split('\n').slice(0, -1);
}
