`timescale 1ns/1ns
module tb;
  reg clk = 0, rst = 1, d = 0;
  wire hit;
  integer i, hits = 0;
  reg [11:0] bits = 12'b101010010100;
  fsm dut(.clk(clk), .rst(rst), .d(d), .hit(hit));
  always #5 clk = ~clk;
  initial begin
    $dumpfile("dump.vcd"); $dumpvars(0, tb);
    @(posedge clk) #1 rst = 0;
    for (i = 11; i >= 0; i = i - 1) begin
      d = bits[i];
      @(posedge clk) #1 hits = hits + hit;
    end
    if (hits != 3) $error("%0d hits, want 3", hits);
    $finish;
  end
endmodule
