// MCP Inspector's command line against the program, over HTTP in both eras and on a pipe.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { bin, here, run, serve, workspace } from './rig.mjs';

const served = workspace();
const server = await serve(served);
const http = (era) => ['--transport', 'http', '--server-url', server.url, '--header', `Authorization: Bearer ${server.token}`, '--protocol-era', era];
const piped = workspace();

for (const [kind, target, dir] of [
	['HTTP, legacy', http('legacy'), served],
	['HTTP, modern', http('modern'), served],
	['stdio', [bin, 'serve', '--stdio', '--workspace', piped], piped],
]) {
	const inspect = async (...args) => {
		const r = await run(process.execPath, [join(here, 'node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js'), '--cli', ...target, '--format', 'json', ...args]);
		assert.equal(r.status, 0, r.stdout + r.stderr);
		return JSON.parse(r.stdout).result;
	};

	test(`${kind}: tools/list`, async () => {
		const { tools } = await inspect('--method', 'tools/list', '--strict'); // status 6: a schema that some client cannot take
		assert.ok(tools.some((t) => t.name === 'yosys_synth'));
	});

	test(`${kind}: tools/call`, async () => {
		const netlist = `build/inspector_${kind.replaceAll(/\W/g, '_')}.json`;
		const args = { sources: ['rtl/counter.v', 'rtl/top.v'], include_dirs: ['inc'], top: 'top', session_id: 'default', netlist };
		const answer = await inspect('--method', 'tools/call', '--tool-name', 'yosys_synth', '--tool-args-json', JSON.stringify(args));
		assert.equal(answer.structuredContent.code, 'OK');
		assert.ok(existsSync(join(dir, netlist)));
	});

	test(`${kind}: resources/list`, async () => {
		const { resources } = await inspect('--method', 'resources/list');
		assert.deepEqual(resources.map((r) => r.uri), ['eda-sidecar://audit/events', 'eda-sidecar://jobs', 'eda-sidecar://sessions']);
	});
}
