// The official TypeScript clients against the program: 1.x speaks the revisions with a handshake (era B), 2.x also the one
// without (era A). Each lists, calls, reads, cancels with proof, and hangs up.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { Client as ClientA, StreamableHTTPClientTransport as HttpA } from '@modelcontextprotocol/client';
import { StdioClientTransport as PipeA } from '@modelcontextprotocol/client/stdio';
import { Client as ClientB } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as PipeB } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as HttpB } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { atEnd, bin, groups, processes, serve, until, workspace } from './rig.mjs';

const design = { sources: ['rtl/counter.v', 'rtl/top.v'], include_dirs: ['inc'], session_id: 'default' };
const served = workspace();
const server = await serve(served);

const me = { name: 'e2e', version: '1' };
const headers = { Authorization: `Bearer ${server.token}` };
const kinds = {
	'2.x auto HTTP': { version: '2026-07-28', client: () => new ClientA(me, { versionNegotiation: { mode: 'auto' } }), transport: () => new HttpA(new URL(server.url), { requestInit: { headers } }) },
	'2.x auto stdio': { version: '2026-07-28', client: () => new ClientA(me, { versionNegotiation: { mode: 'auto' } }), transport: (dir) => new PipeA(pipe(dir)) },
	'2.x default HTTP': { version: '2025-11-25', client: () => new ClientA(me), transport: () => new HttpA(new URL(server.url), { requestInit: { headers } }) },
	'1.x HTTP': { version: '2025-11-25', client: () => new ClientB(me), transport: () => new HttpB(new URL(server.url), { requestInit: { headers } }) },
	'1.x stdio': { version: '2025-11-25', client: () => new ClientB(me), transport: (dir) => new PipeB(pipe(dir)) },
};
const pipe = (dir) => ({ command: bin, args: ['serve', '--stdio', '--workspace', dir], stderr: 'ignore' });

for (const [kind, { version, client, transport }] of Object.entries(kinds)) {
	const stdio = kind.endsWith('stdio');
	const dir = stdio ? workspace() : served;
	const name = kind.replaceAll(/\W/g, '_');
	const connected = client();
	let negotiated;
	const link = transport(dir);
	link.setProtocolVersion = ((set) => (v) => { negotiated = v; set?.call(link, v); })(link.setProtocolVersion);
	await connected.connect(link);
	atEnd(() => connected.close());
	// The result schema is an argument of 1.x alone.
	const call = (tool, args, options) => (connected instanceof ClientB ? connected.callTool({ name: tool, arguments: args }, undefined, options) : connected.callTool({ name: tool, arguments: args }, options));
	const done = async (tool, args) => (await call(tool, args)).structuredContent;

	test(`${kind}: list`, async () => {
		assert.equal(connected.getNegotiatedProtocolVersion?.() ?? negotiated, version);
		const { tools } = await connected.listTools(); // from here on the client validates structured content
		const synth = tools.find((t) => t.name === 'yosys_synth');
		assert.equal(synth.annotations.openWorldHint, false);
		assert.ok(synth.outputSchema && synth.inputSchema.required.includes('netlist'));
		const { resourceTemplates } = await connected.listResourceTemplates();
		assert.ok(resourceTemplates.some((t) => t.uriTemplate.startsWith('eda-sidecar://jobs/{job_id}/artifacts/{name}')));
	});

	test(`${kind}: call and read`, async () => {
		const netlist = `build/${name}.json`;
		const answer = await call('yosys_synth', { ...design, top: 'top', netlist });
		assert.equal(answer.structuredContent.code, 'OK');
		const link = answer.content.find((c) => c.type === 'resource_link' && c.uri.endsWith('/artifacts/netlist'));
		const { contents } = await connected.readResource({ uri: link.uri });
		const onDisk = readFileSync(join(dir, netlist), 'utf8');
		assert.ok(onDisk.startsWith(contents[0].text.slice(0, 1000)) && contents[0].text.length > 1000, 'the resource is not the file');
		assert.ok(JSON.parse(onDisk).modules.top);
		const job = JSON.parse((await connected.readResource({ uri: `eda-sidecar://jobs/${answer.structuredContent.job_id}` })).contents[0].text);
		assert.equal(job.code, 'OK');
	});

	test(`${kind}: refusals`, async () => {
		const answer = await call('yosys_synth', { ...design, top: 'top', netlist: '../escape.json' });
		assert.ok(answer.isError);
		assert.equal(answer.structuredContent.code, 'INVALID_ARGUMENT');
		await assert.rejects(connected.readResource({ uri: 'eda-sidecar://jobs/none' }), { code: connected instanceof ClientB ? -32002 : -32602 }); // 2.x hears -32002, too, and says the newer one
		await assert.rejects(call('no_such_tool', {}), /no_such_tool/);
	});

	// A simulation that never ends, on a target that is there: begun, seen at work, and its job.
	const hang = async (wave, signal) => {
		const heard = [];
		const answer = call('iverilog_simulate', { ...design, sources: [...design.sources, 'tb/hang.v'], top: 'hang', wave }, { signal, onprogress: (p) => heard.push(p) });
		answer.catch(() => {}); // looked at below
		await until('progress', () => heard.length > 0);
		const job = (await done('job_list', { state: 'running' })).data.jobs.find((j) => j.tool === 'iverilog_simulate').job_id;
		await until('the simulation runs', () => processes(job).includes('vvp'));
		assert.ok(groups(job).length > 0, 'no group');
		assert.ok(heard[0].progress > 0 && heard[0].message);
		return { answer, job };
	};
	const dead = (job, wave, before) => {
		assert.deepEqual(processes(job), []);
		assert.deepEqual(groups(job), []);
		assert.deepEqual(readFileSync(join(dir, wave)), before);
	};

	test(`${kind}: progress and cancel`, async () => {
		const wave = `build/${name}.vcd`;
		const good = await done('iverilog_simulate', { ...design, sources: [...design.sources, 'tb/tb.v'], top: 'tb', wave });
		assert.equal(good.code, 'OK');
		const before = readFileSync(join(dir, wave));
		const abort = new AbortController();
		const { answer, job } = await hang(wave, abort.signal);
		abort.abort(new Error('enough'));
		await assert.rejects(answer, /enough/);
		const end = await done('job_wait', { job_id: job, wait_seconds: 20 });
		dead(job, wave, before);
		assert.deepEqual([end.code, end.worker_terminated, end.rolled_back], ['CANCELLED', true, true]);
		assert.equal((await done('session_show', {})).code, 'OK');
	});

	test(`${kind}: hang up`, async () => {
		const wave = `build/${name}.vcd`;
		const before = readFileSync(join(dir, wave));
		const { answer, job } = await hang(wave);
		await connected.close();
		await assert.rejects(answer);
		if (version < '2026-07-28' && !stdio) { // a closed stream means nothing in this era: another connection ends the job
			const other = client();
			await other.connect(transport());
			assert.ok(processes(job).includes('vvp'), 'the job ended with its stream');
			await other.callTool({ name: 'job_cancel', arguments: { job_id: job } });
			await other.close();
		}
		await until('the job is dead', () => processes(job).length === 0 && groups(job).length === 0);
		dead(job, wave, before);
	});
}
