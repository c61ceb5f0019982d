// The conformance suite of the protocol's authors: the scenarios that need no fixture against the program, then every scenario
// against a server of fixtures behind the program's chain of HTTP handlers. The released version of the suite knows the
// revisions up to 2025-11-25, the coming one also 2026-07-28.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';

import { atEnd, here, root, run, serve, start, workspace } from './rig.mjs';

const baseline = join(here, 'expected.yml');
const suite = (version, url, ...args) => run(process.execPath, [join(here, 'node_modules', version, 'dist/index.js'), 'server', '--url', url, '--expected-failures', baseline, ...args]);
const released = '@modelcontextprotocol/conformance';
const coming = 'conformance-next';

const own = {
	'2025-11-25': ['server-initialize', 'server-session-lifecycle', 'ping', 'tools-list', 'resources-list', 'server-sse-multiple-streams', 'dns-rebinding-protection'],
	'2026-07-28': ['server-stateless', 'tools-list', 'resources-list', 'sep-2164-resource-not-found', 'server-sse-multiple-streams', 'dns-rebinding-protection', 'caching', 'http-header-validation'],
};
const program = await serve(workspace(), '--auth', 'local');
for (const [version, scenarios] of Object.entries(own)) {
	for (const scenario of scenarios) {
		test(`program, ${version}: ${scenario}`, async () => {
			const r = await suite(coming, program.url, '--spec-version', version, '--scenario', scenario);
			assert.match(r.stdout, /Passed: [1-9]/);
			assert.equal(r.status, 0, r.stdout + r.stderr);
		});
	}
}

// The server of fixtures is a test of package server, which ends with its input.
const { child: fixtures, ended } = start(join(here, 'conformance'), ['-test.run=^TestConformanceServer$'], {
	cwd: join(root, 'sidecar/server'), env: { ...process.env, CONFORMANCE_LISTEN: '127.0.0.1:0' }, stdio: ['pipe', 'pipe', 'inherit'],
});
atEnd(async () => {
	fixtures.stdin.end();
	assert.equal(await ended, 0, 'exit status of the server of fixtures');
});
const lines = createInterface({ input: fixtures.stdout });
const url = await new Promise((resolve, reject) => {
	lines.once('line', resolve);
	lines.once('close', () => reject(new Error('the server of fixtures ended before it served')));
});

const seen = new Set();
for (const [name, version, ...args] of [
	['released', released],
	['2025-11-25', coming, '--spec-version', '2025-11-25'],
	['2026-07-28', coming, '--spec-version', '2026-07-28'],
]) {
	const r = await suite(version, url, '--suite', 'all', ...args);
	const [, summary = ''] = r.stdout.split('=== SUMMARY ===');
	const [results, judged] = summary.split(/^Total:.*$/m);
	const bad = [...(judged ?? '').split('Expected failures (in baseline)').at(-1).matchAll(/^ {2}[✓✗] ([\w-]+)/gm)].map((m) => m[1]);
	for (const [, scenario] of results.matchAll(/^[✓✗] ([\w-]+):/gm)) {
		seen.add(scenario);
		test(`fixtures, ${name}: ${scenario}`, () => assert.ok(!bad.includes(scenario), judged));
	}
	test(`fixtures, ${name}: the suite agrees`, () => assert.equal(r.status, 0, judged || r.stderr));
}

test('every expected failure has a reason, and its scenario was run', () => {
	const [head, ...entries] = readFileSync(baseline, 'utf8').split('\n').filter((line) => line && !line.startsWith('#'));
	assert.equal(head, 'server:');
	for (const line of entries) {
		const [, scenario] = /^ {2}- ([\w-]+)(?::[\w-]+)? # \w.+$/.exec(line) ?? assert.fail(`not an entry with a reason: ${line}`);
		assert.ok(seen.has(scenario), `${scenario} was not run`);
	}
});
