`timescale 1ns/1ns
// Says hit in the clock after it has seen 1, 0, 1.
module fsm(input clk, input rst, input d, output hit);
  reg [1:0] state;
  localparam idle = 0, one = 1, zero = 2, full = 3;
  always @(posedge clk)
    if (rst) state <= idle;
    else case (state)
      idle: state <= d ? one : idle;
      one:  state <= d ? one : zero;
      zero: state <= d ? full : idle;
      full: state <= d ? one : zero;
    endcase
  assign hit = state == full;
endmodule
